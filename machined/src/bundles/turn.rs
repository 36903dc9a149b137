//! The turn of a bundle: one at a time is verified and imported. It is known whose turn it is, for those who wait or are refused.

use std::sync::Mutex;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::base::lock::Lock as _;

/// The turn.
#[derive(Debug)]
pub struct Turn {
    place: Semaphore,
    /// The origin of the bundle whose turn it is, or was last.
    holder: Mutex<String>,
}

/// The bundle that has the turn, until this value is dropped.
#[derive(Debug)]
pub struct Taking<'a> {
    #[expect(dead_code, reason = "held, not used")]
    place: SemaphorePermit<'a>,
}

impl Default for Turn {
    /// A turn that nobody has.
    fn default() -> Self {
        Turn {
            place: Semaphore::new(1),
            holder: Mutex::default(),
        }
    }
}

impl Turn {
    /// Takes the turn for the bundle of this origin.
    ///
    /// # Errors
    /// Another one has it: the origin of that.
    pub fn try_take(&self, origin: &str) -> Result<Taking<'_>, String> {
        match self.place.try_acquire() {
            Ok(place) => Ok(self.given(place, origin)),
            Err(_) => Err(self.holder.locked().clone()),
        }
    }

    /// Waits for the turn; `None` if there will be none. The bundle before ends within limits of its own.
    pub async fn take(&self, origin: &str) -> Option<Taking<'_>> {
        let place = self.place.acquire().await.ok()?;
        Some(self.given(place, origin))
    }

    fn given<'a>(&self, place: SemaphorePermit<'a>, origin: &str) -> Taking<'a> {
        origin.clone_into(&mut self.holder.locked());
        Taking { place }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn whoever_has_to_wait_learns_for_whom() {
        let turn = Turn::default();
        let first = turn.try_take("sda1").unwrap();
        assert_eq!(turn.try_take("upload").unwrap_err(), "sda1");
        drop(first);
        let second = turn.take("sdb1").await.unwrap();
        assert_eq!(turn.try_take("upload").unwrap_err(), "sdb1");
        drop(second);
        assert!(turn.try_take("upload").is_ok());
    }
}
