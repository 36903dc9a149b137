//! The commands, one file each.

mod apply_config;
mod bootstrap;
mod bundle;
mod completion;
mod config_new;
mod containers;
mod copy;
mod dashboard;
mod diskfree;
mod disks;
mod dmesg;
mod edit;
mod etcd;
mod events;
mod fleet;
mod follow;
mod gen_config;
mod gen_secrets;
mod get;
mod health;
mod image;
mod inspect;
mod kubeconfig;
mod list;
mod logs;
mod man;
mod memory;
mod meta;
mod mounts;
mod netstat;
mod patch;
mod pcap;
mod processes;
mod read;
mod reboot;
mod reset;
mod rollback;
mod service;
mod shutdown;
mod support;
mod time;
mod upgrade;
mod usage;
mod validate;
mod version;
mod wipe;

use instar_client::Failure;

use crate::cli::{Alarm, Cli, Command, Config, Etcd, Gen, Inspect};
use crate::lines::Part;

/// Runs the command.
pub(crate) async fn run(cli: Cli) -> Result<(), Failure> {
    let Cli { global, command } = cli;
    match command {
        Command::Gen(Gen::Config(arguments)) => gen_config::run(&global, &arguments),
        Command::Gen(Gen::Secrets(arguments)) => gen_secrets::run(&global, &arguments),
        Command::Version => version::run(&global).await,
        Command::Service { id, action } => service::run(&global, id.as_deref(), action).await,
        Command::Logs {
            id: Some(id),
            follow,
            tail,
            kubernetes,
        } => {
            let part = Part { follow, tail };
            logs::run(&global, &id, part, kubernetes).await
        }
        Command::Logs { id: None, .. } => logs::names(&global).await,
        Command::Dmesg { follow, tail } => dmesg::run(&global, follow, tail).await,
        Command::Events { tail, actor_id } => events::run(&global, tail, actor_id).await,
        Command::Upgrade(arguments) => upgrade::run(&global, &arguments).await,
        Command::Fleet(fleet) => fleet::run(&global, &fleet).await,
        Command::Follow(follow) => follow::run(&global, &follow).await,
        Command::Reboot { mode, wait } => reboot::run(&global, mode, wait).await,
        Command::Shutdown { force, wait } => shutdown::run(&global, force, wait).await,
        Command::Read { path } => read::run(&global, &path).await,
        Command::Rollback { force, wait } => rollback::run(&global, force, wait).await,
        Command::Reset(arguments) => reset::run(&global, &arguments).await,
        Command::ApplyConfig(arguments) => apply_config::run(&global, &arguments).await,
        Command::Validate(arguments) => validate::run(&global, &arguments),
        Command::Edit(arguments) => edit::run(&global, &arguments).await,
        Command::Patch(arguments) => patch::run(&global, &arguments).await,
        Command::Bootstrap(arguments) => bootstrap::run(&global, &arguments).await,
        Command::Kubeconfig { file, force } => kubeconfig::run(&global, &file, force).await,
        Command::Etcd(Etcd::Members) => etcd::members(&global).await,
        Command::Etcd(Etcd::Status) => etcd::status(&global).await,
        Command::Etcd(Etcd::Alarm(Alarm::List)) => etcd::alarms(&global).await,
        Command::Etcd(Etcd::Alarm(Alarm::Disarm)) => etcd::disarm(&global).await,
        Command::Etcd(Etcd::Defrag) => etcd::defragment(&global).await,
        Command::Etcd(Etcd::Snapshot { file, force }) => {
            etcd::snapshot(&global, &file, force).await
        }
        Command::List(arguments) => list::run(&global, &arguments).await,
        Command::Copy { path, target } => copy::run(&global, &path, &target).await,
        Command::Usage(arguments) => usage::run(&global, &arguments).await,
        Command::Memory { verbose } => memory::run(&global, verbose).await,
        Command::Processes { sort } => processes::run(&global, sort).await,
        Command::Mounts => mounts::run(&global).await,
        Command::Diskfree => diskfree::run(&global).await,
        Command::Netstat(arguments) => netstat::run(&global, &arguments).await,
        Command::Pcap(arguments) => pcap::run(&global, arguments).await,
        Command::Containers { kubernetes } => containers::list(&global, kubernetes).await,
        Command::Restart { id } => containers::restart(&global, &id).await,
        Command::Stats { kubernetes } => containers::stats(&global, kubernetes).await,
        Command::Disks => disks::run(&global).await,
        Command::Wipe(wipe) => wipe::run(&global, wipe).await,
        Command::Time { check } => time::run(&global, check).await,
        Command::Image(image) => image::run(&global, &image).await,
        Command::Bundle(bundle) => bundle::run(&global, &bundle).await,
        Command::Get(wanted) => get::run(&global, &wanted).await,
        Command::Dashboard { update_interval } => dashboard::run(&global, update_interval).await,
        Command::Health { wait_timeout } => health::run(&global, wait_timeout).await,
        Command::Inspect(Inspect::Dependencies) => inspect::dependencies(&global).await,
        Command::Support { file, force } => support::run(&global, &file, force).await,
        Command::Meta(meta) => meta::run(&global, meta).await,
        Command::Config(Config::New {
            file,
            roles,
            crt_ttl,
            force,
        }) => config_new::run(&global, &file, roles, crt_ttl, force).await,
        Command::Man { output_dir } => man::run(&output_dir),
        Command::Completion { shell } => completion::run(shell),
    }
}
