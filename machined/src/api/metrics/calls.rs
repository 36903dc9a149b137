//! Calls of the API by the code of their answer. Calls that apid refuses do not come here.

use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;

use super::text::{Kind, Page};

/// The codes of gRPC, by number.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

static CALLS: [AtomicU64; CODES.len()] = [const { AtomicU64::new(0) }; CODES.len()];

/// Counts an answer with these headers. An answer that has begun has no code there, and counts as good.
pub(in crate::api) fn count(headers: &HeaderMap) {
    let code = headers
        .get("grpc-status")
        .and_then(|code| code.to_str().ok());
    let code = code
        .and_then(|code| code.parse::<usize>().ok())
        .unwrap_or(0);
    if let Some(counter) = CALLS.get(code) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Adds the counters to the page.
pub(super) fn write(page: &mut Page) {
    let mut family = page.family(
        "instar_api_calls_total",
        Kind::Counter,
        "Calls of the API in this generation by the code of their answer; a stream counts when it begins.",
    );
    for (code, counter) in CODES.iter().zip(&CALLS) {
        let count = counter.load(Ordering::Relaxed);
        if count > 0 {
            family.sample(&[("code", code)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn answers_are_counted_by_their_code() {
        let of = |code| {
            CALLS
                .get(code)
                .map_or(0, |it: &AtomicU64| it.load(Ordering::Relaxed))
        };
        let before = (of(15), of(0));
        let mut headers = HeaderMap::new();
        count(&headers);
        headers.insert("grpc-status", HeaderValue::from_static("15"));
        count(&headers);
        headers.insert("grpc-status", HeaderValue::from_static("99"));
        count(&headers);
        assert_eq!(of(15), before.0 + 1);
        assert!(of(0) > before.1);
    }
}
