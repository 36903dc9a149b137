//! gRPC statuses that apid gives by itself: a reply of headers only.
//!
//! Source: the gRPC over HTTP/2 protocol description, "Trailers-Only".

use http::{HeaderValue, Response};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// grpc-message carries printable ASCII; everything else and `%` is encoded.
const NOT_IN_MESSAGES: &AsciiSet = &CONTROLS.add(b'%');

/// The codes that apid uses (google.rpc.Code).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// The error is of no known kind.
    Unknown = 2,
    /// The request is not valid.
    InvalidArgument = 3,
    /// The caller lacks the permission.
    PermissionDenied = 7,
    /// The request is too large, or a limit is reached.
    ResourceExhausted = 8,
    /// Another node's answer is not valid.
    Internal = 13,
    /// machined does not answer; try again.
    Unavailable = 14,
    /// The caller's credentials are no longer valid.
    Unauthenticated = 16,
}

/// The trailer with the code.
pub(super) const STATUS: &str = "grpc-status";
/// The trailer with the message.
pub(super) const MESSAGE: &str = "grpc-message";

/// A reply without a body: it only says how the call ended.
pub(super) fn reply<B: Default>(code: Code, message: &str) -> Response<B> {
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    headers.insert(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    headers.insert(STATUS, HeaderValue::from(code as u16));
    if let Some(message) = self::message(message) {
        headers.insert(MESSAGE, message);
    }
    response
}

/// The text as a value of the header `grpc-message`.
pub(super) fn message(text: &str) -> Option<HeaderValue> {
    let encoded = utf8_percent_encode(text, NOT_IN_MESSAGES);
    HeaderValue::from_str(&encoded.to_string()).ok()
}

/// Decodes the value of `grpc-message`. An invalid encoding stays as it is, as the protocol demands.
pub(super) fn words(message: &str) -> String {
    percent_decode_str(message).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn messages_are_encoded_as_grpc_wants_them() {
        assert_eq!(
            message("50% naïve\n\x7f").unwrap(),
            "50%25 na%C3%AFve%0A%7F"
        );
        for text in ["50% naïve\n", "", "plain", "%"] {
            assert_eq!(words(message(text).unwrap().to_str().unwrap()), text);
        }
        assert_eq!(words("100% %zz %4"), "100% %zz %4");
        let response: Response<String> = reply(Code::Unavailable, "later");
        assert_eq!(response.headers()["grpc-status"], "14");
        assert_eq!(response.headers()["grpc-message"], "later");
    }
}
