//! Removing images that nothing names any more, so that tags which move don't fill /var.
//!
//! An image stays while one of these is so:
//!
//! - it is in force for a container, or has a name that a container of the config has;
//! - a container that something is left of was made from it (its overlay is mounted);
//! - somebody works with it: a pull, a start, an upgrade;
//! - a caller of the API asked for it within a day, and it is among the last few that were.
//!
//! A power cut in the middle leaves a directory that the next sweep removes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::base::blocking_io;
use crate::machine::{Configured, Machine};
use crate::values::{Digest, ImageReference};

/// After a change, containers are about to be started and stopped.
const AFTER_CHANGE: Duration = Duration::from_secs(5);
/// As long as something is in use that nothing names.
const AGAIN: Duration = Duration::from_secs(30);
/// Without any change: what callers asked for gets old.
const PERIOD: Duration = Duration::from_secs(3600);
/// How long an image stays that a caller asked for: to be named by a config or an upgrade that is to come.
const ASKED_FOR: Duration = Duration::from_secs(24 * 3600);
/// And how many of them, the newest.
const MOST_ASKED_FOR: usize = 8;

/// Collects after the boot, after every change of the config and of what is in force, and now and then.
pub async fn keep(machine: Arc<Machine>) {
    let mut settled = machine.watch_settled();
    if settled.wait_for(|settled| *settled).await.is_err() {
        return;
    }
    let (mut config, mut in_force) = (machine.watch_config(), machine.images_in_force.watch());
    loop {
        tokio::time::sleep(AFTER_CHANGE).await;
        let pause = match collect(&machine).await {
            Ok(true) => PERIOD,
            Ok(false) => AGAIN,
            Err(error) => {
                tracing::warn!("images that nothing names stay for now: {error:#}");
                PERIOD
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Their senders live in the machine.
            _ = config.changed() => {}
            _ = in_force.changed() => {}
        }
    }
}

/// Removes what nothing names; says whether all of it is gone, and not in use.
pub async fn collect(machine: &Machine) -> anyhow::Result<bool> {
    // In maintenance mode nobody knows what is named.
    let Some(configured) = machine.config() else {
        return Ok(true);
    };
    // Removing what was cut off takes as long as an image has files.
    let store = machine.images.clone();
    let swept = blocking_io::within(blocking_io::ANSWER, move || {
        store.sweep()?;
        store.list()
    });
    let images = swept.await??;
    let settled = machine.settled_config();
    let named = [Some(&configured), settled.as_ref()];
    let named = named.into_iter().flatten().flat_map(|it| names(it));
    let named: BTreeSet<ImageReference> = named.collect();
    let mut needed = machine.images_in_force.digests();
    let asked_for = images
        .iter()
        .filter_map(|image| Some((image.asked_for_at()?, image.digest())));
    needed.extend(of_callers(asked_for, SystemTime::now()));
    let surplus = images
        .into_iter()
        .filter(|image| image.names().is_disjoint(&named) && !needed.contains(&image.digest()));
    // Their values are dropped here: they would count as users.
    let surplus: Vec<Digest> = surplus.map(|image| image.digest()).collect();
    let mut are_gone = true;
    for digest in surplus {
        let is_gone = machine.images.remove_unused(digest).await?;
        if is_gone {
            tracing::info!("the image {digest} is removed: nothing names it any more");
        }
        are_gone &= is_gone;
    }
    Ok(are_gone)
}

/// The images of a config's containers.
fn names(configured: &Configured) -> impl Iterator<Item = ImageReference> {
    let containers = configured.config.containers.iter();
    containers.filter_map(|container| container.image.to_string().parse().ok())
}

/// The images that callers asked for lately, by when they did.
fn of_callers(
    asked_for: impl Iterator<Item = (SystemTime, Digest)>,
    now: SystemTime,
) -> Vec<Digest> {
    let young = asked_for.filter_map(|(at, digest)| {
        // A time to come is that of a clock which was wrong.
        let age = now.duration_since(at).ok()?;
        (age < ASKED_FOR).then_some((age, digest))
    });
    let mut young: Vec<(Duration, Digest)> = young.collect();
    young.sort();
    young.truncate(MOST_ASKED_FOR);
    young.into_iter().map(|(_, digest)| digest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_asked_for_stays_for_a_day_and_only_the_newest() {
        let now = SystemTime::now();
        let digest = |number: u64| Digest::of(&number.to_le_bytes());
        let minutes = |number: u64| now - Duration::from_secs(60 * number);
        let asked_for = (0..20).map(|number| (minutes(number), digest(number)));
        let kept = of_callers(asked_for, now);
        assert_eq!(kept, (0..8).map(digest).collect::<Vec<_>>());

        let yesterday = minutes(24 * 60);
        let to_come = now + Duration::from_secs(60);
        let odd = [(yesterday, digest(1)), (to_come, digest(2))];
        assert!(of_callers(odd.into_iter(), now).is_empty());
    }
}
