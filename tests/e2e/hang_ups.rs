//! Calls that change the machine, whose callers hang up: the machine is as before the call, or as after it.

mod calls;
mod methods;
mod seen;
mod walk;

use std::time::Duration;

use anyhow::ensure;
use instar_api::machine::apply_configuration_request::Mode;
use instar_tests::{
    HangUp, ImpatientCaller, MachineConfig, Outcome, Scratch, Test, chapters, tests,
};

use calls::{Call, millis};
use methods::every_method_is_walked_or_changes_nothing;
use seen::Seen;
pub(crate) use seen::{config_name, is_free};
use walk::Walk;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        leave_the_machine_as_before_or_as_after,
        every_method_is_walked_or_changes_nothing,
    ]
}

/// Number of disconnects in the walk.
const HANG_UPS: usize = 100;
/// Number of disconnects from calls that take long.
const OF_LONG_CALLS: usize = 22;
/// Timeout for the end of all operations. An upgrade with a boot takes longest, on a host that runs three other
/// machines.
const LIMIT: Duration = Duration::from_secs(600);
/// The second container's port, and its name.
const SLOW_PORT: u16 = 8086;
pub(crate) const SLOW: &str = "slow";

/// A greeter that takes some seconds to stop.
pub(crate) fn slow(config: MachineConfig, host: &str, name: &str, seconds: u8) -> MachineConfig {
    config.container(
        name,
        &format!("{host}/greeter:v1"),
        &format!("args: [\"{SLOW_PORT}\", \"{seconds}\"]\nnetwork: {{mode: host}}\n"),
    )
}

async fn leave_the_machine_as_before_or_as_after(scratch: Scratch) -> Outcome {
    let mut walk = Walk::begin(&scratch).await?;
    chapters![
        a_small_call_is_made_or_not(&mut walk, HANG_UPS - OF_LONG_CALLS),
        a_config_is_staged_or_not(&mut walk),
        a_version_is_staged_or_not(&mut walk),
        a_disk_is_wiped_or_not(&mut walk),
        a_reboot_happens_or_not(&mut walk),
        an_upgrade_happens_or_not(&mut walk),
        a_rollback_happens_or_not(&mut walk),
        a_reset_happens_or_not(&mut walk),
        a_small_call_is_made_or_not(&mut walk, HANG_UPS),
        a_shutdown_happens_or_not(&mut walk),
    ]
    .await
}

/// Repeats small calls until this many callers have hung up in all.
async fn a_small_call_is_made_or_not(walk: &mut Walk, hung_up: usize) -> Outcome {
    while walk.hung_up < hung_up {
        let call = walk.small_call();
        walk.hang_up(call).await?;
    }
    Ok(())
}

async fn a_config_is_staged_or_not(walk: &mut Walk) -> Outcome {
    walk.settle().await?;
    for name in ["walk-a", "walk-b", "walk-a"] {
        let mut call = walk.apply(name, Mode::Staged, 300);
        call.after.settled = name.to_owned();
        walk.staged_configs.insert(name.to_owned());
        walk.hang_up(call).await?;
    }
    Ok(())
}

async fn a_version_is_staged_or_not(walk: &mut Walk) -> Outcome {
    let stagings: [fn(&Walk) -> Call; 3] = [
        |walk| walk.upgrade(true, 4000),
        Walk::lifecycle_upgrade,
        Walk::lifecycle_install,
    ];
    for _ in 0..3 {
        for staging in stagings {
            let call = staging(walk);
            walk.hang_up(call).await?;
        }
    }
    let other = walk.other_version().to_owned();
    walk.staged_versions.insert(other);
    Ok(())
}

async fn a_disk_is_wiped_or_not(walk: &mut Walk) -> Outcome {
    for _ in 0..3 {
        let call = walk.wipe_of_the_spare_disk();
        walk.hang_up(call).await?;
    }
    Ok(())
}

async fn a_reboot_happens_or_not(walk: &mut Walk) -> Outcome {
    let call = walk.reboot();
    walk.hang_up(call).await?;
    walk.settle().await
}

/// The upgrade is to another generation, or by a boot.
async fn an_upgrade_happens_or_not(walk: &mut Walk) -> Outcome {
    for within in [2000, 5000] {
        let call = walk.upgrade(false, within);
        walk.hang_up(call).await?;
        walk.staged_versions.clear();
        walk.settle().await?;
    }
    Ok(())
}

async fn a_rollback_happens_or_not(walk: &mut Walk) -> Outcome {
    let call = walk.rollback();
    walk.hang_up(call).await?;
    walk.settle().await
}

async fn a_reset_happens_or_not(walk: &mut Walk) -> Outcome {
    let call = walk.reset_of_ephemeral();
    walk.hang_up(call).await?;
    walk.settle().await
}

/// The last call: the machine is off, or goes on.
async fn a_shutdown_happens_or_not(walk: &mut Walk) -> Outcome {
    println!("{} callers hung up", walk.hung_up);
    let call = walk.shutdown();
    let moment = call.within.mul_f64(walk.random.f64());
    let (method, message) = (format!("/{}", call.method), &call.message);
    let mut connection = ImpatientCaller::connect(&walk.node).await?;
    connection
        .call(&method, message, moment, HangUp::Connection)
        .await?;
    tokio::time::sleep(millis(2000)).await;
    let free = async { is_free(&walk.node.kept_channel().await?).await };
    match tokio::time::timeout(millis(5000), free).await {
        Ok(Ok(())) => ensure!(Seen::of(&walk.node).await? == walk.seen),
        Ok(Err(_)) | Err(_) => ensure!(walk.node.vm().wait_for_end(LIMIT)?.is_clean()),
    }
    Ok(())
}
