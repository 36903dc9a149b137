//! One HTTP request over one connection, as far as the registry's interface needs it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result};

/// Timeout for an answer: a busy registry writes 30 MB to disk before it answers.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The status, e.g. 200.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The content.
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// Returns a header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Sends a request to `host:port` and waits for the whole answer.
pub fn http(
    address: &str,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<HttpAnswer> {
    // The answer ends with the connection and is never in chunks.
    send(address, (method, target, "HTTP/1.0"), headers, body)
}

/// The same for a server that speaks nothing older than HTTP/1.1, and gives no answer in chunks.
pub(crate) fn http_1_1(
    address: &str,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<HttpAnswer> {
    let headers = [headers, &[("Connection", "close")]].concat();
    send(address, (method, target, "HTTP/1.1"), &headers, body)
}

fn send(
    address: &str,
    (method, target, version): (&str, &str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<HttpAnswer> {
    let what = || format!("{method} http://{address}{target}");
    let mut connection = TcpStream::connect(address).with_context(what)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!(
        "{method} {target} {version}\r\nHost: {address}\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let sent = connection
        .write_all(head.as_bytes())
        .and_then(|()| connection.write_all(body));
    let mut answer = Vec::new();
    let received = read_answer(&mut connection, &mut answer);
    // A server may refuse before it has read everything: then its answer counts, and not the failed write.
    if answer.is_empty() {
        sent.with_context(what)?;
        received.with_context(what)?;
    }
    parse(answer).with_context(|| format!("{}: not an HTTP answer", what()))
}

/// Reads to the end of the connection, or of the length that the answer tells: some servers keep the connection open all the same.
fn read_answer(connection: &mut TcpStream, answer: &mut Vec<u8>) -> std::io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    loop {
        let length = connection.read(&mut piece)?;
        answer.extend_from_slice(&piece[..length]);
        if length == 0 || is_whole(answer) {
            return Ok(());
        }
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let lengths = head
        .lines()
        .filter_map(|line| line.strip_prefix("content-length:"));
    let length = lengths
        .filter_map(|text| text.trim().parse::<usize>().ok())
        .next();
    length.is_some_and(|length| answer.len() >= end + 4 + length)
}

fn parse(answer: Vec<u8>) -> Option<HttpAnswer> {
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    Some(HttpAnswer {
        status,
        headers,
        body: answer[end + 4..].to_vec(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn takes_an_answer_apart() {
        let answer =
            parse(b"HTTP/1.0 202 Accepted\r\nLocation: /v2/x\r\n\r\nbody".to_vec()).unwrap();
        assert_eq!(
            (answer.status, answer.header("location")),
            (202, Some("/v2/x"))
        );
        assert_eq!(answer.body, b"body");
        assert!(is_whole(b"HTTP/1.1 200 OK\r\nContent-Length:4\r\n\r\nbody"));
        assert!(!is_whole(
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbody"
        ));
        assert!(!is_whole(b"HTTP/1.0 200 OK\r\n\r\nbody"));
        assert_eq!(parse(b"garbage".to_vec()), None);
    }
}
