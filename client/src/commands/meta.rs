//! `meta`: values under one-byte keys, kept by the node.

use instar_api::machine::{MetaDeleteRequest, MetaWriteRequest};
use instar_client::Failure;
use serde_json::json;

use crate::cli::{Global, Meta};
use crate::each_node::each_node;

pub(super) async fn run(global: &Global, meta: Meta) -> Result<(), Failure> {
    each_node(global, async |node| {
        let mut machine = node.machine();
        let (key, done) = match &meta {
            Meta::Write { key, value } => {
                let request = MetaWriteRequest {
                    key: (*key).into(),
                    value: value.as_bytes().to_vec(),
                };
                let reply = machine.meta_write(node.request(request)).await;
                reply.map_err(|status| {
                    node.explain(&format!("cannot keep a value under key {key}"), status)
                })?;
                (key, "written")
            }
            Meta::Delete { key } => {
                let request = MetaDeleteRequest { key: (*key).into() };
                let reply = machine.meta_delete(node.request(request)).await;
                reply.map_err(|status| {
                    node.explain(&format!("cannot remove the value under key {key}"), status)
                })?;
                (key, "deleted")
            }
        };
        global.output.show(
            || format!("{}: {key:#04x} {done}", node.name()),
            || json!({ "node": node.name(), "key": key, "done": done }),
        )?;
        Ok(())
    })
    .await
}
