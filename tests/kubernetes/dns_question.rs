//! A question to a DNS server over TCP (RFC 1035).

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, ensure};

/// Timeout for each part of the answer.
const ANSWER: Duration = Duration::from_secs(20);
/// The head of a question: a number, one question, and the server may ask others.
const HEAD: [u8; 12] = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
/// The type and the class of what is asked for: an IPv4 address of the internet.
const ADDRESS: [u8; 4] = [0, 1, 0, 1];

/// Asks the server at a port of this host for the address of a name.
pub(crate) fn address_of(name: &str, port: u16) -> anyhow::Result<Ipv4Addr> {
    let answer = exchange(&question(name)?, port)?;
    let (answers, failure) = (answer[7], answer[3] & 15);
    ensure!(answers == 1 && failure == 0, "{answer:?}");
    // The address is the end of the one answer.
    let address: &[u8; 4] = answer.last_chunk().context("a short answer")?;
    Ok(Ipv4Addr::from(*address))
}

fn question(name: &str) -> anyhow::Result<Vec<u8>> {
    let mut question = HEAD.to_vec();
    for label in name.split('.') {
        question.push(u8::try_from(label.len())?);
        question.extend(label.as_bytes());
    }
    question.push(0);
    question.extend(ADDRESS);
    Ok(question)
}

/// Sends a message and returns the next one; over TCP the length is before each.
fn exchange(message: &[u8], port: u16) -> anyhow::Result<Vec<u8>> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(ANSWER))?;
    let mut sent = u16::try_from(message.len())?.to_be_bytes().to_vec();
    sent.extend(message);
    connection.write_all(&sent)?;
    let mut length = [0; 2];
    connection.read_exact(&mut length)?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    connection.read_exact(&mut answer)?;
    ensure!(answer.len() > HEAD.len(), "{answer:?}");
    Ok(answer)
}
