//! The commands, one file each.

mod apply_config;
mod completion;
mod dmesg;
mod events;
mod gen_config;
mod logs;
mod read;
mod reboot;
mod reset;
mod rollback;
mod service;
mod shutdown;
mod upgrade;
mod version;

use crate::cli::{Cli, Command, Gen};
use crate::failure::Failure;

/// Does what was asked for.
pub(crate) async fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { global, command } = cli;
    match command {
        Command::Gen(Gen::Config(arguments)) => gen_config::run(&global, &arguments),
        Command::Version => version::run(&global).await,
        Command::Service { id, action } => service::run(&global, id.as_deref(), action).await,
        Command::Logs { id, follow, tail } => logs::run(&global, &id, follow, tail).await,
        Command::Dmesg { follow, tail } => dmesg::run(&global, follow, tail).await,
        Command::Events { tail, actor_id } => events::run(&global, tail, actor_id).await,
        Command::Upgrade(arguments) => upgrade::run(&global, &arguments).await,
        Command::Reboot { mode, wait } => reboot::run(&global, mode, wait).await,
        Command::Shutdown { force, wait } => shutdown::run(&global, force, wait).await,
        Command::Read { path } => read::run(&global, &path).await,
        Command::Rollback { wait } => rollback::run(&global, wait).await,
        Command::Reset(arguments) => reset::run(&global, &arguments).await,
        Command::ApplyConfig(arguments) => apply_config::run(&global, &arguments).await,
        Command::Completion { shell } => completion::run(shell),
    }
}
