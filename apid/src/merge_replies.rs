//! Merges the replies of several nodes: each element names the node that answered.
//!
//! Every reply of these services has one field, `messages = 1`, whose elements have `metadata = 1`; a stream sends such elements. So no
//! other field needs to be known: metadata is appended, since parts of a message that come twice are merged.
//!
//! Source: protobuf's encoding, "Last One Wins" and "Message Structure".

use instar_api::common::Metadata;
use instar_api::google::rpc::Status;
use prost::Message as _;

/// Any reply, reduced to its elements.
#[derive(Clone, PartialEq, prost::Message)]
struct Reply {
    #[prost(bytes = "vec", repeated, tag = "1")]
    messages: Vec<Vec<u8>>,
}

/// Any element, reduced to its metadata.
#[derive(Clone, PartialEq, prost::Message)]
struct Element {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
}

/// The failure of one node's call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// A code of google.rpc.Code.
    pub(super) code: i32,
    /// The reason.
    pub(super) message: String,
}

/// One element, with the name of the node that sent it.
pub(super) fn named(element: &[u8], node: &str) -> Vec<u8> {
    let metadata = Metadata {
        hostname: node.to_owned(),
        ..Metadata::default()
    };
    let mut named = element.to_vec();
    named.extend(only(metadata));
    named
}

/// The element for a node whose call failed.
pub(super) fn failed(failure: &Failure, node: &str) -> Vec<u8> {
    only(Metadata {
        hostname: node.to_owned(),
        error: failure.message.clone(),
        status: Some(Status {
            code: failure.code,
            message: failure.message.clone(),
            details: Vec::new(),
        }),
    })
}

fn only(metadata: Metadata) -> Vec<u8> {
    Element {
        metadata: Some(metadata),
    }
    .encode_to_vec()
}

/// The elements of a reply, each with the name of the node that sent it.
pub(super) fn of_reply(reply: &[u8], node: &str) -> Result<Vec<Vec<u8>>, prost::DecodeError> {
    let reply = Reply::decode(reply)?;
    Ok(reply
        .messages
        .iter()
        .map(|element| named(element, node))
        .collect())
}

/// Encodes these elements as a reply.
pub(super) fn reply(elements: Vec<Vec<u8>>) -> Vec<u8> {
    Reply { messages: elements }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_api::common::Data;
    use instar_api::machine::{Version, VersionInfo, VersionResponse};

    fn version(tag: &str) -> Version {
        Version {
            version: Some(VersionInfo {
                tag: tag.to_owned(),
                ..VersionInfo::default()
            }),
            ..Version::default()
        }
    }

    #[test]
    fn replies_become_one_whose_elements_say_who_answers() {
        let answer = |tag| {
            VersionResponse {
                messages: vec![version(tag)],
            }
            .encode_to_vec()
        };
        let mut elements = of_reply(&answer("v1"), "a").unwrap();
        elements.extend(of_reply(&answer("v2"), "b").unwrap());
        let away = Failure {
            code: 14,
            message: "it is away".to_owned(),
        };
        elements.push(failed(&away, "c"));
        let all = VersionResponse::decode(&*reply(elements)).unwrap().messages;
        let metadata: Vec<Metadata> = all
            .iter()
            .map(|version| version.metadata.clone().unwrap())
            .collect();
        let names: Vec<&str> = metadata.iter().map(|it| it.hostname.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(all[1].version, version("v2").version);
        assert_eq!(all[2].version, None);
        assert_eq!(metadata[0].status, None);
        assert_eq!(metadata[2].status.as_ref().unwrap().code, 14);
        assert_eq!(metadata[2].error, "it is away");
    }

    #[test]
    fn an_element_of_a_stream_keeps_what_is_in_it() {
        let data = Data {
            bytes: b"a line".to_vec(),
            ..Data::default()
        };
        let named = Data::decode(&*named(&data.encode_to_vec(), "a")).unwrap();
        assert_eq!(named.bytes, b"a line");
        assert_eq!(named.metadata.unwrap().hostname, "a");
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        assert!(of_reply(&[0xff; 4], "a").is_err());
    }
}
