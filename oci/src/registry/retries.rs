//! Whether a request that failed is made once more, and when.

use std::time::Duration;

use instar_base::back_off::BackOff;

use super::RegistryClient;
use super::error::RequestError;
use super::limits::BRIEF;
use crate::registries::{Endpoint, Patience};

/// The retries of a request that failed for a reason that may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// Number of attempts, including the first.
    pub attempts: u32,
    /// The pauses between them.
    pub pauses: BackOff,
}

impl Default for Retries {
    fn default() -> Self {
        Retries {
            attempts: 4,
            pauses: BackOff {
                first: Duration::from_millis(500),
                longest: Duration::from_secs(128),
            },
        }
    }
}

impl Retries {
    /// The pause after this many failed attempts; `None` to give up.
    fn delay(&self, failed: u32) -> Option<Duration> {
        (failed < self.attempts).then(|| self.pauses.after(failed))
    }
}

impl RegistryClient {
    /// The pause before an endpoint is tried again, after this many failed attempts within this time; `None` to give up.
    pub(super) fn delay(
        &self,
        endpoint: &Endpoint,
        failed: u32,
        within: Duration,
    ) -> Option<Duration> {
        let delay = self.retries.delay(failed)?;
        let is_soon = within.saturating_add(delay) < BRIEF;
        (is_soon || endpoint.patience == Patience::Full).then_some(delay)
    }

    /// Notes an endpoint that gave no answer: the next request goes to others first.
    pub(super) fn noted(&self, endpoint: &Endpoint, error: RequestError) -> RequestError {
        if error.is_silence() {
            self.away.note(endpoint);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_back_off_and_end() {
        let retries = Retries {
            attempts: 4,
            pauses: BackOff {
                first: Duration::from_secs(1),
                longest: Duration::from_secs(60),
            },
        };
        let delays: Vec<_> = (1..=4)
            .map(|failed| retries.delay(failed).map(|delay| delay.as_secs()))
            .collect();
        assert_eq!(delays, [Some(1), Some(2), Some(4), None]);
    }
}
