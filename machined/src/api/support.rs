//! Support data for a stick: resources, logs and events of this machine, as far as a reader of the API may see them. Secrets are not among
//! them, whoever asks: nobody proves who plugged in the stick.

use std::fmt::Write as _;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use instar_api::events::EventPayload;
use tokio::sync::mpsc;

use super::kernel_log::KernelLog;
use super::resources::{KINDS, Kind, Sensitivity, Viewer, list};
use crate::base::blocking_io;
use crate::config_source::Secrets;
use crate::machine::Machine;
use crate::sequences::SupportPart;
use crate::services::Tail;
use crate::store::event_log::Start;

/// Limit on the bytes of one part; the end of a log counts.
const LARGEST: usize = 4 << 20;

/// Collects all parts, and hands them over one by one. A part that cannot be collected says why.
pub fn collect(machine: Arc<Machine>, parts: mpsc::Sender<SupportPart>) -> BoxFuture<'static, ()> {
    async move {
        // The receiver ends early if the stick is full or gone; then the rest is of no use.
        let _ = collect_all(&machine, &parts).await;
    }
    .boxed()
}

/// The receiver is gone.
struct Gone;

async fn collect_all(
    machine: &Arc<Machine>,
    parts: &mpsc::Sender<SupportPart>,
) -> Result<(), Gone> {
    let send = async |name: String, content: Vec<u8>| {
        let part = SupportPart { name, content };
        parts.send(part).await.map_err(|_| Gone)
    };
    send("kernel.log".to_owned(), kernel_log().into_bytes()).await?;
    send("events.txt".to_owned(), events(machine).into_bytes()).await?;
    for name in machine.log_names() {
        let content = log(machine, &name).await;
        send(format!("logs/{name}.log"), content).await?;
    }
    for kind in KINDS {
        if kind.sensitivity == Sensitivity::Open {
            let content = resources(machine.clone(), kind).await;
            send(
                format!("resources/{}.yaml", kind.name),
                content.into_bytes(),
            )
            .await?;
        }
    }
    Ok(())
}

fn kernel_log() -> String {
    let mut text = String::new();
    let read = KernelLog::open(false).and_then(|mut log| {
        while let Some(record) = log.next_kept()? {
            text.push_str(&Secrets::Hidden.shown(record.to_string()));
        }
        Ok(())
    });
    if let Err(error) = read {
        text.push_str(&missing(&error));
    }
    text
}

fn events(machine: &Machine) -> String {
    let mut text = String::new();
    let mut reader = machine.events.read(&Start::History);
    // Those that are there; the next one may never come.
    while let Some(event) = reader.next().now_or_never() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {}", event.id, in_words(&event.payload));
    }
    text
}

/// An event in one line. Formatting every field of every type would cost more memory on every machine than these lines are worth.
pub fn in_words(payload: &EventPayload) -> String {
    let name = payload.name();
    match payload {
        EventPayload::Sequence(event) => {
            let error = event.error.as_ref().map(|error| error.message.as_str());
            let (action, error) = (event.action().as_str_name(), error.unwrap_or_default());
            format!("{name} {} {action} {error}", event.sequence)
        }
        EventPayload::Phase(event) => {
            format!("{name} {} {}", event.phase, event.action().as_str_name())
        }
        EventPayload::Task(event) => {
            format!("{name} {} {}", event.task, event.action().as_str_name())
        }
        EventPayload::ServiceState(event) => {
            let action = event.action().as_str_name();
            format!("{name} {} {action} {}", event.service, event.message)
        }
        EventPayload::MachineStatus(event) => {
            let ready = event.status.as_ref().is_some_and(|status| status.ready);
            format!("{name} {} ready={ready}", event.stage().as_str_name())
        }
        _ => name.to_owned(),
    }
}

/// The lines of a log on the disk, and then those in memory.
async fn log(machine: &Machine, name: &str) -> Vec<u8> {
    let Some(ring) = machine.log_of(name) else {
        return Vec::new();
    };
    let mut reader = ring.read(Tail::All);
    let mut lines = match reader.older() {
        Some(older) => old_lines(machine, name, older).await,
        None => Vec::new(),
    };
    while let Some(line) = reader.next_kept() {
        lines.extend_from_slice(&line);
    }
    let surplus = lines.len().saturating_sub(LARGEST);
    lines.drain(..surplus);
    lines
}

async fn old_lines(machine: &Machine, name: &str, older: crate::services::Older) -> Vec<u8> {
    let found = match machine.log_disk.older(name, older).await {
        Ok(Some(found)) => found,
        Ok(None) => return Vec::new(),
        Err(error) => return missing(&error.into()).into_bytes(),
    };
    let mut found = found;
    let reading = blocking_io::within(blocking_io::ANSWER, move || {
        let mut lines = Vec::new();
        while let Some(chunk) = found.next_chunk()? {
            lines.extend(chunk);
            let surplus = lines.len().saturating_sub(LARGEST);
            lines.drain(..surplus);
        }
        anyhow::Ok(lines)
    });
    match reading.await {
        Ok(Ok(lines)) => lines,
        Ok(Err(error)) => missing(&error).into_bytes(),
        Err(error) => missing(&error.into()).into_bytes(),
    }
}

async fn resources(machine: Arc<Machine>, kind: &'static Kind) -> String {
    let listing = blocking_io::within(blocking_io::ANSWER, move || {
        list(&machine, kind, Secrets::Hidden, Viewer::Any)
    });
    let listed = match listing.await {
        Ok(Ok(listed)) => listed,
        Ok(Err(error)) => return missing(&error),
        Err(error) => return missing(&error.into()),
    };
    let mut text = String::new();
    for resource in listed {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "---\n# {}\n{}", resource.metadata.id, resource.yaml);
    }
    text
}

fn missing(error: &anyhow::Error) -> String {
    format!("[the rest is missing: {error:#}]\n")
}
