//! `gpurun select`: prints the devices that satisfy the constraints, as nvisel does.

use std::io::{self, IsTerminal as _};

use super::answer::{Asked, Driver, answer};
use super::print::{Standard, verbosity};
use crate::cli::args::SelectArgs;
use crate::cli::exit::Exit;
use crate::cli::selection::{Purpose, SelectOutputArgs};
use crate::model::device::ProbeRequest;
use crate::model::selection::Settings;
use crate::selection::explain;
use crate::selection::flow::{self, ChooseError, Screen, Surroundings};
use crate::sys::notice::Notices;
use crate::sys::stderr::NonBlockingStderr;

/// Chooses and prints. Never prints a set that is too small: standard output stays empty then.
pub(super) fn run(args: &SelectArgs, out: &mut Standard<'_>) -> Exit {
    let verbosity = verbosity(&args.common);
    let settings = match args.selection.settings(Purpose::Select) {
        Ok(settings) => settings,
        Err(mistakes) => {
            Notices::new(verbosity).error(&mistakes.to_string());
            return Exit::Usage;
        }
    };
    let stdout_is_terminal = io::stdout().is_terminal();
    // nvisel answers 2 where NVML fails.
    let asked =
        Asked { patience: settings.patience, failed: Exit::Usage, library: args.common.library(), verbosity };
    answer(asked, out, |driver, output| {
        let mut stderr = NonBlockingStderr::new();
        let screen = Screen::new(&mut stderr, verbosity);
        choose(&settings, &args.output, driver, output, stdout_is_terminal, screen)
    })
}

fn choose(
    settings: &Settings,
    form: &SelectOutputArgs,
    driver: &Driver<'_>,
    output: &mut Vec<u8>,
    stdout_is_terminal: bool,
    mut screen: Screen<'_>,
) -> Exit {
    let mut probe = |request: &ProbeRequest| driver.probe(request);
    let surroundings = Surroundings::from_environment();
    let chosen = flow::settle(settings, &surroundings, &mut probe, &mut flow::ask_cuda, &mut screen, None);
    let taken = match chosen {
        Ok(taken) => taken,
        Err(error) => return refused(&error, settings, output, &mut screen),
    };
    let chosen = taken.chosen();
    if settings.json {
        let json = explain::json(&taken.choice, &taken.candidates, settings.format);
        output.extend(format!("{json}\n").into_bytes());
        return Exit::Ok;
    }
    if settings.explain {
        screen.explain(&taken.choice, &taken.candidates);
    }
    if !stdout_is_terminal {
        // What captures the answer shows nothing of it.
        let _ = writeln!(screen.out, "{}", flow::assignment(&chosen, settings.format));
    }
    let (between, end) = form.separators();
    let names = explain::names(&chosen, settings.format);
    output.extend(format!("{}{end}", names.join(between)).into_bytes());
    Exit::Ok
}

/// Says why nothing was chosen.
fn refused(error: &ChooseError, settings: &Settings, output: &mut Vec<u8>, screen: &mut Screen<'_>) -> Exit {
    screen.error(error);
    // For programs the verdicts are the answer, and they say themselves that it is none.
    if let Some(shortage) = error.shortage().filter(|_| settings.json) {
        output.extend(format!("{}\n", shortage.json).into_bytes());
    }
    match error {
        ChooseError::TooFew(_) | ChooseError::Never(_) => Exit::SelectTooFew,
        ChooseError::WaitedTooLong(_) => Exit::WaitedTooLong,
        // nvisel answers 2 where the driver fails.
        ChooseError::Driver(_) | ChooseError::NoUser(_) => Exit::Usage,
        ChooseError::Selection(crate::selection::SelectionError::UtilizationOnMig) => Exit::Usage,
        ChooseError::Selection(_) => Exit::OwnFailure,
    }
}
