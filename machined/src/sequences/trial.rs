//! Whether a generation has something to prove: a version on trial becomes healthy before init's deadline, or gives way to the one
//! before it. No other generation has anything to give way to. It is healthy once it can be asked, and a slow disk or network, which
//! starting again would not make faster, ends nothing.

use super::boot_assets;
use crate::init_link::StartReason;
use crate::machine::Machine;
use crate::upgrade::Handover;

/// What is known of a generation when it begins.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// The hand-over names its version as that of an upgrade under way.
    is_in_handover: bool,
    /// An earlier generation of this boot of the machine was healthy.
    was_healthy: bool,
    /// The boot loader counts the start of this version, as far as the firmware tells.
    is_counted: bool,
}

/// Whether what runs came without a reboot and has not proved itself: until it has, the hand-over names its upgrade.
pub(super) fn came_without_reboot(
    machine: &Machine,
    start: StartReason,
    handover: &Handover,
) -> bool {
    let known = Known {
        is_in_handover: names(handover, &machine.running.version),
        ..Known::default()
    };
    is_soft(start, known)
}

/// Whether init's deadline judges what runs. Needs no disk: that may be slow or silent.
pub(super) async fn has_deadline(
    machine: &Machine,
    start: StartReason,
    handover: &Handover,
    was_healthy: bool,
) -> bool {
    let mut known = Known {
        is_in_handover: names(handover, &machine.running.version),
        was_healthy,
        is_counted: false,
    };
    if is_the_boot(start) && !known.was_healthy {
        known.is_counted = match boot_assets::on_trial(machine).await {
            Ok(entry) => entry.is_some(),
            Err(error) => {
                tracing::error!(
                    "this version counts as being on trial, as nobody knows whether it is: {error:#}"
                );
                true
            }
        };
    }
    must_prove_itself(start, known)
}

/// Whether what runs is what the loader started, at once or after machined has died: a version on trial stays on trial until it has
/// proved itself.
pub(super) fn is_the_boot(start: StartReason) -> bool {
    matches!(
        start,
        StartReason::Boot | StartReason::Restart | StartReason::Fresh
    )
}

fn names(handover: &Handover, running: &str) -> bool {
    let upgrade = handover.upgrade.as_ref();
    upgrade.is_some_and(|upgrade| upgrade.to == running)
}

fn is_soft(start: StartReason, known: Known) -> bool {
    match start {
        StartReason::Next => true,
        StartReason::Restart | StartReason::Fresh => known.is_in_handover,
        _ => false,
    }
}

fn must_prove_itself(start: StartReason, known: Known) -> bool {
    let is_counted = is_the_boot(start) && known.is_counted && !known.was_healthy;
    is_soft(start, known) || is_counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_version_on_trial_has_a_deadline() {
        use StartReason::{Boot, Fresh, Next, Restart, Rollback};
        let known = |text: &str| Known {
            is_in_handover: text.contains("in handover"),
            was_healthy: text.contains("healthy"),
            is_counted: text.contains("counted"),
        };
        for (start, facts, expected) in [
            (Boot, "", false),
            (Boot, "counted", true),
            (Next, "healthy, in handover", true),
            (Next, "healthy", true),
            // The previous version is back: what is behind it is gone.
            (Rollback, "healthy", false),
            (Rollback, "healthy, counted", false),
            // machined died before it was healthy, and after.
            (Restart, "", false),
            (Restart, "counted", true),
            (Restart, "healthy, counted", false),
            (Restart, "healthy, in handover", true),
            (Fresh, "counted", true),
            (Fresh, "healthy, counted", false),
            (Fresh, "healthy, in handover", true),
        ] {
            assert_eq!(
                must_prove_itself(start, known(facts)),
                expected,
                "{start:?}, {facts}"
            );
        }
    }
}
