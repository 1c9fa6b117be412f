//! `gpurun select`: prints the devices that satisfy the constraints, as nvisel does.

use std::io::Write;

use super::choose::{self, ChooseError, Probe, Screen, Surroundings};
use crate::cli::exit::Exit;
use crate::cli::selection::SelectOutputArgs;
use crate::model::selection::Settings;
use crate::selection::explain;

/// Where `select` writes, and who reads it.
pub struct SelectStreams<'a> {
    /// The answer.
    pub stdout: &'a mut dyn Write,
    /// Nobody captures the answer: the assignment need not be shown beside it.
    pub stdout_is_terminal: bool,
    /// Everything else.
    pub screen: Screen<'a>,
}

/// Chooses and prints. Never prints a set that is too small: standard output stays empty then.
pub fn run(
    settings: &Settings,
    output: &SelectOutputArgs,
    surroundings: &Surroundings,
    probe: Probe<'_>,
    streams: &mut SelectStreams<'_>,
) -> Exit {
    let mut ask = choose::ask_cuda;
    let screen = &mut streams.screen;
    let settled = match choose::settle(settings, surroundings, probe, &mut ask, screen, None) {
        Ok(settled) => settled,
        Err(error) => {
            let _ = writeln!(screen.out, "gpurun: {error}");
            // For programs the verdicts are the answer, and they say themselves that it is none.
            if let Some(shortage) = error.shortage().filter(|_| settings.json) {
                let _ = writeln!(streams.stdout, "{}", shortage.json);
            }
            return match error {
                ChooseError::TooFew(_) | ChooseError::Never(_) => Exit::SelectTooFew,
                // nvisel answers 2 where the driver fails.
                ChooseError::Driver(_) => Exit::Usage,
                other => other.exit(),
            };
        }
    };
    let chosen = settled.chosen();
    let written = if settings.json {
        let json = explain::json(&settled.choice, &settled.candidates, settings.format);
        writeln!(streams.stdout, "{json}")
    } else {
        if settings.explain {
            let _ = write!(screen.out, "{}", explain::table(&settled.choice, &settled.candidates));
        }
        if !streams.stdout_is_terminal {
            let _ = writeln!(screen.out, "{}", choose::assignment(&chosen, settings.format));
        }
        let (between, end) = output.separators();
        let names = explain::names(&chosen, settings.format);
        write!(streams.stdout, "{}{end}", names.join(between))
    };
    match written.and_then(|()| streams.stdout.flush()) {
        Ok(()) => Exit::Ok,
        Err(error) => {
            let _ = writeln!(screen.out, "gpurun: cannot write the answer: {error}");
            Exit::Failed
        }
    }
}
