//! `hindcast cdp`: what continuous data protection costs.

pub(crate) mod curve;
pub(crate) mod keep;
mod measure;
mod plan;

use crate::failure::Failure;
use crate::session::Global;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Plan(Box<plan::Args>),
}

pub(crate) fn run(command: Command, global: &Global) -> Result<(), Failure> {
    match command {
        Command::Plan(args) => plan::run(&args, global),
    }
}
