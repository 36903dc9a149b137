//! The desired state of a service: up or down as its operator wants, and a hold by the sequence that takes the machine down.
//!
//! ```text
//!             start                 hold                     release
//!   Down ◄──────────► Up      any ────────► the same, held ────────► the same
//!             stop
//!   any ── retire ──► Gone: for good
//! ```
//!
//! A held service is down whatever its operator wants. The operator's wish is kept, and counts again when the hold ends. The same is true
//! of the moment between the two runs of a restart that the machine itself has decided.

/// The desired state of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DesiredState {
    wanted: Wanted,
    held: bool,
    /// The machine restarts it: it is down until its previous process has ended.
    restarts: bool,
    /// The machine goes down at once: the service is killed instead of told to end.
    hurried: bool,
    /// The change of generations leaves the service running, unattended.
    left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Wanted {
    Up,
    #[default]
    Down,
    /// Down for good.
    Gone,
}

impl DesiredState {
    /// Wants it up.
    pub(super) fn start(&mut self) {
        if self.wanted != Wanted::Gone {
            self.wanted = Wanted::Up;
        }
    }

    /// Wants it down.
    pub(super) fn stop(&mut self) {
        if self.wanted != Wanted::Gone {
            self.wanted = Wanted::Down;
        }
    }

    /// Wants it down for good.
    pub(super) fn retire(&mut self) {
        self.wanted = Wanted::Gone;
    }

    /// Begins or ends the moment between two runs.
    pub(super) fn restart(&mut self, restarts: bool) {
        self.restarts = restarts;
    }

    /// Keeps it down until it is released.
    pub(super) fn hold(&mut self) {
        self.held = true;
    }

    /// Takes its time to end from it until it is released.
    pub(super) fn hurry(&mut self) {
        self.hurried = true;
    }

    /// Leaves it running unattended until it is released.
    pub(super) fn leave(&mut self) {
        self.left = true;
    }

    /// Ends the hold: the operator's wish counts again.
    pub(super) fn release(&mut self) {
        self.held = false;
        self.hurried = false;
        self.left = false;
    }

    pub(super) fn is_hurried(self) -> bool {
        self.hurried
    }

    pub(super) fn is_left(self) -> bool {
        self.left
    }

    pub(super) fn is_held(self) -> bool {
        self.held
    }

    /// Whether it has to run.
    pub(super) fn is_up(self) -> bool {
        self.is_wanted_up() && !self.held && !self.restarts
    }

    /// Whether its operator wants it up.
    pub(super) fn is_wanted_up(self) -> bool {
        self.wanted == Wanted::Up
    }

    pub(super) fn is_gone(self) -> bool {
        self.wanted == Wanted::Gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole machine as a table: the wish, and whether the service is held → both after each act; the last column says whether the
    /// service has to run.
    #[test]
    fn every_transition() {
        use Wanted::{Down, Gone, Up};
        let acts = [
            DesiredState::start,
            DesiredState::stop,
            DesiredState::retire,
            DesiredState::hold,
            DesiredState::release,
        ];
        #[rustfmt::skip]
        let table = [
            //              start          stop           retire         hold           release
            ((Down, false), [(Up, false),   (Down, false), (Gone, false), (Down, true),  (Down, false)], false),
            ((Down, true),  [(Up, true),    (Down, true),  (Gone, true),  (Down, true),  (Down, false)], false),
            ((Up, false),   [(Up, false),   (Down, false), (Gone, false), (Up, true),    (Up, false)],   true),
            ((Up, true),    [(Up, true),    (Down, true),  (Gone, true),  (Up, true),    (Up, false)],   false),
            ((Gone, false), [(Gone, false), (Gone, false), (Gone, false), (Gone, true),  (Gone, false)], false),
            ((Gone, true),  [(Gone, true),  (Gone, true),  (Gone, true),  (Gone, true),  (Gone, false)], false),
        ];
        for ((wanted, held), expected, is_up) in table {
            let before = DesiredState {
                wanted,
                held,
                ..DesiredState::default()
            };
            let after = acts.map(|act| {
                let mut desired = before;
                act(&mut desired);
                (desired.wanted, desired.held)
            });
            assert_eq!(after, expected, "{before:?}");
            assert_eq!(before.is_up(), is_up, "{before:?}");
            assert_eq!(before.is_gone(), wanted == Gone, "{before:?}");
            assert_eq!(before.is_held(), held, "{before:?}");
        }
    }

    #[test]
    fn a_restart_loses_nothing_of_what_the_operator_wants() {
        for (wish, is_up) in [
            (DesiredState::start as fn(&mut DesiredState), true),
            (DesiredState::stop, false),
        ] {
            let mut desired = DesiredState::default();
            desired.start();
            desired.restart(true);
            assert!(desired.is_wanted_up() && !desired.is_up());
            wish(&mut desired);
            assert!(!desired.is_up());
            desired.restart(false);
            assert_eq!((desired.is_up(), desired.is_wanted_up()), (is_up, is_up));
        }
    }

    #[test]
    fn a_hold_is_above_what_the_operator_wants_and_loses_none_of_it() {
        type Act = fn(&mut DesiredState);
        // Each story: the acts in order, and whether the service has to run after each.
        let stories: [&[(Act, bool)]; 6] = [
            (&[(DesiredState::start, true), (DesiredState::stop, false)]),
            (&[
                (DesiredState::start, true),
                (DesiredState::hold, false),
                (DesiredState::start, false),
                (DesiredState::release, true),
            ]),
            // Stopped on purpose: the release does not start it.
            (&[
                (DesiredState::start, true),
                (DesiredState::stop, false),
                (DesiredState::hold, false),
                (DesiredState::release, false),
            ]),
            // Stopped on purpose meanwhile.
            (&[
                (DesiredState::start, true),
                (DesiredState::hold, false),
                (DesiredState::stop, false),
                (DesiredState::release, false),
            ]),
            // Started meanwhile: up once the hold is over.
            (&[
                (DesiredState::hold, false),
                (DesiredState::start, false),
                (DesiredState::release, true),
            ]),
            (&[
                (DesiredState::start, true),
                (DesiredState::retire, false),
                (DesiredState::start, false),
                (DesiredState::stop, false),
            ]),
        ];
        for (number, story) in stories.iter().enumerate() {
            let mut desired = DesiredState::default();
            for (step, (act, up)) in story.iter().enumerate() {
                act(&mut desired);
                assert_eq!(
                    desired.is_up(),
                    *up,
                    "story {number}, step {step}: {desired:?}"
                );
            }
        }
        let mut gone = DesiredState::default();
        gone.retire();
        gone.start();
        assert!(gone.is_gone());
    }
}
