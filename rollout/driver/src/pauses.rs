//! The pauses between two orders to one machine.
//!
//! An order may end at once, with nothing to report: the machine is busy, or an API on its way fails. The machine shows no sign of it then, so the
//! engine would have it asked again in the next round, hundreds of times a second.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use instar_base::back_off::BackOff;
use instar_rollout::MachineName;

const PAUSES: BackOff = BackOff {
    first: Duration::from_secs(2),
    longest: Duration::from_secs(60),
};

/// The pause of each machine whose last order came to nothing definite.
#[derive(Debug, Default)]
pub(crate) struct Pauses(BTreeMap<MachineName, Pause>);

#[derive(Debug)]
struct Pause {
    /// Number of orders in a row that came to nothing.
    orders: u32,
    began: Instant,
}

impl Pause {
    fn length(&self) -> Duration {
        PAUSES.after(self.orders)
    }
}

impl Pauses {
    /// Begins the pause after an order that may have to be given again. After one that took long it is the first one again.
    pub(crate) fn begin(&mut self, name: &MachineName, now: Instant) {
        let last = self.0.get(name);
        let last = last.filter(|it| now.duration_since(it.began) < it.length() + PAUSES.longest);
        let orders = last.map_or(1, |it| it.orders.saturating_add(1));
        self.0.insert(name.clone(), Pause { orders, began: now });
    }

    /// Ends the pause of a machine: its last order came to something.
    pub(crate) fn end(&mut self, name: &MachineName) {
        self.0.remove(name);
    }

    /// The machines that are not to be given an order yet.
    pub(crate) fn at(&self, now: Instant) -> BTreeSet<MachineName> {
        let rest = self
            .0
            .iter()
            .filter(|(_, it)| now.duration_since(it.began) < it.length());
        rest.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_while_orders_come_to_nothing() {
        let name = MachineName::from("n1");
        let (mut pauses, mut now) = (Pauses::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert!(pauses.at(now).is_empty());
        // The seconds that the order takes, and those of the pause after it.
        for (takes, pause) in [
            (0, 2),
            (0, 4),
            (10, 8),
            (0, 16),
            (0, 32),
            (0, 60),
            (59, 60),
            (60, 2),
            (0, 4),
        ] {
            now += takes * second;
            pauses.begin(&name, now);
            now += (pause - 1) * second;
            assert!(pauses.at(now).contains(&name), "{pause} s");
            now += second;
            assert!(pauses.at(now).is_empty(), "{pause} s");
        }
        pauses.begin(&name, now);
        pauses.end(&name);
        assert!(pauses.at(now).is_empty());
    }
}
