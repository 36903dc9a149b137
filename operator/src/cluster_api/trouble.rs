//! Why a step of an update was not taken.

/// Why, in a sentence. Cluster API writes it to the Machine, so the same trouble has the same words each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It may pass by itself: nothing was refused.
    Passing(String),
    /// It will not, without a person.
    Lasting(String),
}

impl Trouble {
    /// The trouble of a call to an API server. What it is in detail goes to the log.
    pub(super) fn of(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |error| match error {
            kube::Error::Api(status) if matches!(status.code, 409 | 429 | 500..) => {
                eprintln!("{doing}: {}", status.message);
                Self::Passing(format!("{doing}: the API server says {}", status.code))
            }
            kube::Error::Api(status) => Self::Lasting(format!("{doing}: {}", status.message)),
            error => {
                eprintln!("{doing}: {error}");
                Self::Passing(format!("{doing}: the API server does not answer"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refusal_lasts_and_silence_passes() {
        for (code, lasts) in [
            (409, false),
            (429, false),
            (503, false),
            (403, true),
            (404, true),
            (422, true),
        ] {
            let status = Status::failure("no", "Reason").with_code(code);
            let trouble = Trouble::of("x")(kube::Error::Api(Box::new(status)));
            assert_eq!(
                matches!(trouble, Trouble::Lasting(_)),
                lasts,
                "{code}: {trouble:?}"
            );
        }
        let silent = Trouble::of("x")(kube::Error::LinesCodecMaxLineLengthExceeded);
        assert!(matches!(silent, Trouble::Passing(_)), "{silent:?}");
    }
}
