//! gRPC statuses that apid gives by itself: a reply of headers only.
//!
//! Source: the gRPC over HTTP/2 protocol description, "Trailers-Only".

use http::{HeaderValue, Response};

/// The codes that apid uses (google.rpc.Code).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// Nobody knows what.
    Unknown = 2,
    /// The request makes no sense.
    InvalidArgument = 3,
    /// The caller may not do that.
    PermissionDenied = 7,
    /// The request is too large.
    ResourceExhausted = 8,
    /// Another node's answer makes no sense.
    Internal = 13,
    /// machined does not answer; try again.
    Unavailable = 14,
    /// Nobody knows any more who the caller is.
    Unauthenticated = 16,
}

/// The trailer with the code.
pub(super) const STATUS: &str = "grpc-status";
/// The trailer with the words.
pub(super) const MESSAGE: &str = "grpc-message";

/// A reply that only says how the call ended.
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

/// The reverse. What is no encoding stays as it is, as the protocol wants it.
pub(super) fn percent_decode(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| byte == b'%');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(code.unwrap_or(byte));
        rest = match code {
            Some(_) => &after[2..],
            None => after,
        };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_encoded_as_grpc_wants_them() {
        assert_eq!(percent_encode("50% naïve\n"), "50%25 na%C3%AFve%0A");
        for text in ["50% naïve\n", "", "plain", "%"] {
            assert_eq!(percent_decode(&percent_encode(text)), text);
        }
        assert_eq!(percent_decode("100% %zz %4"), "100% %zz %4");
        let response: Response<String> = reply(Code::Unavailable, "later");
        assert_eq!(response.headers()["grpc-status"], "14");
        assert_eq!(response.headers()["grpc-message"], "later");
    }
}
