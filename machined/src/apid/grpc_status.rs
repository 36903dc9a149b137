//! gRPC statuses that apid gives by itself: a reply of headers only.
//!
//! Source: the gRPC over HTTP/2 protocol description, "Trailers-Only".

use http::{HeaderValue, Response};

/// The codes that apid uses (google.rpc.Code).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// The request makes no sense.
    InvalidArgument = 3,
    /// The caller may not do that.
    PermissionDenied = 7,
    /// machined does not answer; try again.
    Unavailable = 14,
}

/// A reply that only says how the call ended.
pub(super) fn reply<B: Default>(code: Code, message: &str) -> Response<B> {
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    headers.insert(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    headers.insert("grpc-status", HeaderValue::from(code as u16));
    if let Some(message) = self::message(message) {
        headers.insert("grpc-message", message);
    }
    response
}

/// Words as the header `grpc-message` carries them.
pub(super) fn message(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&percent_encode(text)).ok()
}

/// grpc-message carries printable ASCII; everything else and `%` is percent-encoded.
fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_encoded_as_grpc_wants_them() {
        assert_eq!(percent_encode("50% naïve\n"), "50%25 na%C3%AFve%0A");
        let response: Response<String> = reply(Code::Unavailable, "later");
        assert_eq!(response.headers()["grpc-status"], "14");
        assert_eq!(response.headers()["grpc-message"], "later");
    }
}
