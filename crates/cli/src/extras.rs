//! `hindcast completions` and `hindcast man`. Both are generated from the description of the
//! command line that `--help` uses, too.

use crate::Cli;
use crate::failure::Failure;
use clap::CommandFactory;
use std::io::Write;
use std::path::PathBuf;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  hindcast completions bash > /etc/bash_completion.d/hindcast")]
pub(crate) struct Completions {
    /// Shell that the script is for
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Print the manual page, or write the pages of all commands into a directory
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  hindcast man | man -l -\n  hindcast man --dir /usr/local/share/man/man1"
)]
pub(crate) struct Man {
    /// Directory, which must exist, for one page per command [default: print the page of hindcast
    /// to standard output]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "hindcast", &mut script);
    Ok(std::io::stdout().lock().write_all(&script)?)
}

pub(crate) fn man(args: &Man) -> Result<(), Failure> {
    match &args.dir {
        Some(dir) => clap_mangen::generate_to(Cli::command(), dir)?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            std::io::stdout().lock().write_all(&page)?;
        }
    }
    Ok(())
}
