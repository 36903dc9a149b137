//! What is wanted of a service: what its operator wants, and above that a hold by whoever takes the machine down.
//!
//! ```text
//!             start                 hold                     release
//!   Down ◄──────────► Up      any ────────► the same, held ────────► the same
//!             stop
//!   any ── retire ──► Gone: for good
//! ```
//!
//! A held service is down whatever its operator wants. What the operator wants is kept, and counts again when the hold ends.

/// What a service is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DesiredState {
    wanted: Wanted,
    held: bool,
    /// Whoever changes the generation wants it to run on, unattended.
    left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Wanted {
    Up,
    #[default]
    Down,
    /// Down, and it will not come back.
    Gone,
}

impl DesiredState {
    /// It is to be up.
    pub(super) fn start(&mut self) {
        if self.wanted != Wanted::Gone {
            self.wanted = Wanted::Up;
        }
    }

    /// It is to be down.
    pub(super) fn stop(&mut self) {
        if self.wanted != Wanted::Gone {
            self.wanted = Wanted::Down;
        }
    }

    /// It is to be down for good.
    pub(super) fn retire(&mut self) {
        self.wanted = Wanted::Gone;
    }

    /// It is to be down until released.
    pub(super) fn hold(&mut self) {
        self.held = true;
    }

    /// It is to run on without anybody who looks after it, until it is released.
    pub(super) fn leave(&mut self) {
        self.left = true;
    }

    /// What its operator wants counts again.
    pub(super) fn release(&mut self) {
        self.held = false;
        self.left = false;
    }

    pub(super) fn is_left(self) -> bool {
        self.left
    }

    pub(super) fn is_held(self) -> bool {
        self.held
    }

    /// Whether it is to run.
    pub(super) fn is_up(self) -> bool {
        self.wanted == Wanted::Up && !self.held
    }

    pub(super) fn is_gone(self) -> bool {
        self.wanted == Wanted::Gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole machine as a table: what is wanted, and whether it is held → the same after each act; the last column says whether
    /// the service is to run.
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
                left: false,
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
    fn a_hold_is_above_what_the_operator_wants_and_loses_none_of_it() {
        type Act = fn(&mut DesiredState);
        // What happens, one after the other, and whether the service is to run after each.
        let stories: [&[(Act, bool)]; 6] = [
            (&[(DesiredState::start, true), (DesiredState::stop, false)]),
            (&[
                (DesiredState::start, true),
                (DesiredState::hold, false),
                (DesiredState::start, false),
                (DesiredState::release, true),
            ]),
            // Stopped on purpose: nobody starts it again.
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
