//! Locks without poison.

use std::sync::{Mutex, MutexGuard};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_another_leaves_the_content_in_use() {
        let number = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _held = number.locked();
                panic!("as a test fails");
            });
            other.join().is_err()
        });
        assert!(panicked && number.is_poisoned());
        *number.locked() += 1;
        assert_eq!(*number.locked(), 2);
    }
}
