//! `processes`: the node's processes, with their memory and processor time.

use instar_api::machine::ProcessInfo;
use instar_client::Failure;
use serde_json::json;

use crate::cli::{Global, ProcessOrder};
use crate::each_node::each_node;
use crate::output::{human, table};

pub(super) async fn run(global: &Global, order: ProcessOrder) -> Result<(), Failure> {
    each_node(global, async |node| {
        let reply = node.machine().processes(node.request(())).await;
        let reply = reply.map_err(|status| node.explain("cannot list processes", status))?;
        let mut processes = node.only(reply.into_inner().messages)?.processes;
        match order {
            ProcessOrder::Rss => {
                processes.sort_by_key(|process| std::cmp::Reverse(process.resident_memory))
            }
            ProcessOrder::Cpu => processes.sort_by(|a, b| b.cpu_time.total_cmp(&a.cpu_time)),
        }
        global.output.show(
            || {
                let row = |process: &ProcessInfo| {
                    vec![
                        node.name().to_owned(),
                        process.pid.to_string(),
                        process.state.clone(),
                        process.threads.to_string(),
                        format!("{:.2}", process.cpu_time),
                        human(process.virtual_memory),
                        human(process.resident_memory),
                        command(process),
                    ]
                };
                table(
                    &[
                        "NODE", "PID", "STATE", "THREADS", "CPU-TIME", "VIRTMEM", "RESMEM", "COMMAND",
                    ],
                    &processes.iter().map(row).collect::<Vec<_>>(),
                )
            },
            || {
                let process = |process: &ProcessInfo| {
                    json!({
                        "pid": process.pid,
                        "ppid": process.ppid,
                        "state": process.state,
                        "threads": process.threads,
                        "cpu_seconds": process.cpu_time,
                        "virtual_bytes": process.virtual_memory,
                        "resident_bytes": process.resident_memory,
                        "command": process.command,
                        "executable": process.executable,
                        "args": process.args,
                        "label": process.label,
                    })
                };
                json!({ "node": node.name(), "processes": processes.iter().map(process).collect::<Vec<_>>() })
            },
        )?;
        Ok(())
    })
    .await
}

/// Threads of the kernel have no command line.
fn command(process: &ProcessInfo) -> String {
    if process.args.is_empty() {
        format!("[{}]", process.command)
    } else {
        process.args.clone()
    }
}
