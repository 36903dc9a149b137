//! `netstat`: sockets.

use instar_api::machine::netstat_request::{Feature, Filter, L4proto, NetNs};
use instar_api::machine::{ConnectRecord, NetstatRequest};
use instar_client::Failure;
use serde_json::json;

use crate::cli::{Global, Netstat};
use crate::each_node::each_node;
use crate::output::table;

const COLUMNS: [&str; 8] = [
    "NODE", "PROTO", "RECV-Q", "SEND-Q", "LOCAL", "REMOTE", "STATE", "PROGRAM",
];

pub(super) async fn run(global: &Global, arguments: &Netstat) -> Result<(), Failure> {
    each_node(global, async |node| {
        let reply = node
            .machine()
            .netstat(node.request(request(arguments)))
            .await;
        let reply = reply.map_err(|status| node.explain("cannot list sockets", status))?;
        let records = node.only(reply.into_inner().messages)?.connectrecord;
        global.output.show(
            || {
                let mut rows: Vec<_> = records.iter().map(|record| row(node.name(), record)).collect();
                let mut columns = COLUMNS.to_vec();
                if arguments.all_namespaces {
                    columns.push("NAMESPACE");
                    for (row, record) in rows.iter_mut().zip(&records) {
                        row.push(record.netns.clone());
                    }
                }
                table(&columns, &rows)
            },
            || {
                let record = |record: &ConnectRecord| {
                    let process = record.process.clone().unwrap_or_default();
                    json!({
                        "protocol": record.l4proto,
                        "local": end(&record.localip, record.localport),
                        "remote": end(&record.remoteip, record.remoteport),
                        "state": record.state().as_str_name(),
                        "receive_queue": record.rxqueue,
                        "send_queue": record.txqueue,
                        "uid": record.uid,
                        "inode": record.inode,
                        "pid": process.pid,
                        "program": process.name,
                        "namespace": record.netns,
                    })
                };
                json!({ "node": node.name(), "sockets": records.iter().map(record).collect::<Vec<_>>() })
            },
        )?;
        Ok(())
    })
    .await
}

fn request(arguments: &Netstat) -> NetstatRequest {
    let any = !(arguments.tcp || arguments.udp || arguments.raw);
    let (v4, v6) = (
        arguments.ipv4 || !arguments.ipv6,
        arguments.ipv6 || !arguments.ipv4,
    );
    let (tcp, udp, raw) = (
        any || arguments.tcp,
        any || arguments.udp,
        any || arguments.raw,
    );
    NetstatRequest {
        filter: match (arguments.all, arguments.listening) {
            (true, _) => Filter::All,
            (false, true) => Filter::Listening,
            (false, false) => Filter::Connected,
        }
        .into(),
        feature: Some(Feature {
            pid: arguments.programs,
        }),
        l4proto: Some(L4proto {
            tcp: tcp && v4,
            tcp6: tcp && v6,
            udp: udp && v4,
            udp6: udp && v6,
            udplite: udp && v4,
            udplite6: udp && v6,
            raw: raw && v4,
            raw6: raw && v6,
        }),
        netns: Some(NetNs {
            hostnetwork: true,
            netns: Vec::new(),
            allnetns: arguments.all_namespaces,
        }),
    }
}

fn end(ip: &str, port: u32) -> String {
    let port = match port {
        0 => "*".to_owned(),
        port => port.to_string(),
    };
    if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}

fn row(node: &str, record: &ConnectRecord) -> Vec<String> {
    let program = match &record.process {
        Some(process) if process.pid != 0 => format!("{}/{}", process.pid, process.name),
        _ => String::new(),
    };
    vec![
        node.to_owned(),
        record.l4proto.clone(),
        record.rxqueue.to_string(),
        record.txqueue.to_string(),
        end(&record.localip, record.localport),
        end(&record.remoteip, record.remoteport),
        record.state().as_str_name().to_owned(),
        program,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_can_be_typed_again() {
        assert_eq!(end("::1", 80), "[::1]:80");
        assert_eq!(end("0.0.0.0", 0), "0.0.0.0:*");
    }
}
