//! What is done for people at a terminal: colour, which shows by the prefix `gpurun:` what kind of line it is, and lines
//! that fit.

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// News.
    Note,
    /// The end of a job that succeeded.
    Success,
    /// Something to look at.
    Warning,
    /// A failure.
    Error,
}

impl Kind {
    /// The parameters of its SGR escape sequence.
    fn code(self) -> &'static str {
        match self {
            Kind::Note => "1",
            Kind::Success => "1;32",
            Kind::Warning => "1;33",
            Kind::Error => "1;31",
        }
    }
}

/// Whether to use colour on a stream: on a terminal, unless `NO_COLOR` is set or the terminal has none.
pub fn wants_color(is_terminal: bool) -> bool {
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    is_terminal && variable("NO_COLOR").is_empty() && variable("TERM") != "dumb"
}

/// How a line begins.
pub fn prefix(kind: Kind, colored: bool) -> String {
    if colored { format!("\x1b[{}mgpurun:\x1b[0m ", kind.code()) } else { "gpurun: ".to_owned() }
}

/// Columns of the terminal on standard output; `None` where it is none.
pub fn stdout_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(if size.ws_col > 0 { usize::from(size.ws_col) } else { 80 })
}

/// A line of at most so many characters; one that is cut ends in dots. Without columns it stays as it is.
pub fn cut(line: &str, columns: Option<usize>) -> String {
    match columns {
        Some(columns) if line.chars().count() > columns => {
            line.chars().take(columns.saturating_sub(3)).chain("...".chars()).collect()
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_has_the_color_and_nothing_else() {
        assert_eq!(prefix(Kind::Error, false), "gpurun: ");
        assert_eq!(prefix(Kind::Error, true), "\x1b[1;31mgpurun:\x1b[0m ");
        assert!(!wants_color(false));
    }

    #[test]
    fn a_line_that_is_cut_says_so() {
        assert_eq!(cut("waiting", Some(7)), "waiting");
        assert_eq!(cut("waiting", Some(6)), "wai...");
        assert_eq!(cut("waiting", None), "waiting");
    }
}
