//! Locks without poison.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A mutex that stays usable after a panic of its holder.
///
/// A program of the machine aborts on a panic, so none of them ever sees a poisoned lock; in tests the panic itself is the failure.
pub trait Lock<T> {
    /// Locks the mutex; waits for its holder. Never hold it over an `await`: the guard belongs to this thread.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Lock<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The changes of what such a mutex holds.
pub trait Changes {
    /// Gives the lock back until another holder has told of a change after which `waits` is false, or until the limit has passed. The caller
    /// who gives no limit knows that such a change comes.
    fn wait_locked<'a, T>(
        &self,
        held: MutexGuard<'a, T>,
        limit: Option<Duration>,
        waits: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T>;
}

impl Changes for Condvar {
    fn wait_locked<'a, T>(
        &self,
        held: MutexGuard<'a, T>,
        limit: Option<Duration>,
        waits: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        match limit {
            None => {
                let waited = self.wait_while(held, waits);
                waited.unwrap_or_else(|poisoned| poisoned.into_inner())
            }
            Some(limit) => {
                let waited = self.wait_timeout_while(held, limit, waits);
                waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has another thread panic while it holds the lock.
    fn poison(number: &Mutex<i32>) {
        let panicked = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _held = number.locked();
                panic!("as a test fails");
            });
            other.join().is_err()
        });
        assert!(panicked && number.is_poisoned());
    }

    #[test]
    fn a_panic_of_another_leaves_the_content_in_use() {
        let number = Mutex::new(1);
        poison(&number);
        *number.locked() += 1;
        assert_eq!(*number.locked(), 2);
    }

    #[test]
    fn a_change_is_waited_for_as_long_as_the_limit_allows() {
        let (number, changed) = (Mutex::new(1), Condvar::new());
        poison(&number);
        let none_comes = changed.wait_locked(number.locked(), Some(Duration::ZERO), |it| *it == 1);
        assert_eq!(*none_comes, 1);
        drop(none_comes);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *changed.wait_locked(number.locked(), None, |it| *it < 3));
            for new in [2, 3] {
                *number.locked() = new;
                changed.notify_all();
            }
            assert_eq!(other.join().ok(), Some(3));
        });
    }
}
