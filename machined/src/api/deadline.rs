//! The caller's timeout for the whole answer. The server's own timeout covers only the beginning of a stream.

use std::time::Duration;

use tonic::metadata::MetadataMap;

/// The metadata key, from the gRPC protocol over HTTP/2.
const TIMEOUT: &str = "grpc-timeout";
/// Limit on the digits of the value, from the same protocol.
const DIGITS: usize = 8;

/// Returns the timeout that the caller set; none if it is missing or not in the protocol's format.
pub(super) fn of(request: &MetadataMap) -> Option<Duration> {
    let text = request.get(TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > DIGITS || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Option<Duration> {
        let mut metadata = MetadataMap::new();
        metadata.insert(TIMEOUT, text.parse().unwrap());
        of(&metadata)
    }

    #[test]
    fn every_unit_of_the_protocol_is_known() {
        for (text, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("4m", Duration::from_millis(4)),
            ("5000000u", Duration::from_secs(5)),
            ("6n", Duration::from_nanos(6)),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_sets_no_end() {
        for bad in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789S"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(of(&MetadataMap::new()), None);
    }

    #[test]
    fn what_our_client_writes_is_read() {
        let mut request = tonic::Request::new(());
        request.set_timeout(Duration::from_secs(90));
        assert_eq!(of(request.metadata()), Some(Duration::from_secs(90)));
    }
}
