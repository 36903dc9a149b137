//! `pcap`: packets of a link, as a pcap file.

use std::future::pending;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use instar_api::machine::PacketCaptureRequest;
use instar_client::{Failure, FailureKind};
use tonic::Code;

use crate::cli::{Global, Pcap};
use crate::output::print_bytes;
use crate::pcap_records::PcapRecords;
use crate::private_file::{self, PrivateFile};
use crate::target;

/// The file that stands for standard output.
const STANDARD_OUTPUT: &str = "-";
/// Extra time after the duration for the node to send the rest.
const REST: Duration = Duration::from_secs(2);

pub(super) async fn run(global: &Global, arguments: Pcap) -> Result<(), Failure> {
    let to_file = arguments.file != Path::new(STANDARD_OUTPUT);
    if !to_file && io::stdout().is_terminal() {
        return Err(
            Failure::new(FailureKind::Usage, "a capture is nothing for a terminal")
                .advise("name a file with --file, or let a program read it: instarctl pcap | tcpdump -n -r -"),
        );
    }
    let node = target::one(global).await?;
    let doing = format!("cannot capture packets on {}", arguments.interface);
    let mut request = node.request(PacketCaptureRequest {
        interface: arguments.interface,
        promiscuous: arguments.promiscuous,
        snap_len: arguments.snaplen,
        bpf_filter: arguments
            .bpf_filter
            .map(|filter| filter.0)
            .unwrap_or_default(),
    });
    if let Some(duration) = arguments.duration {
        request.set_timeout(duration);
    }
    let reply = node.machine().packet_capture(request).await;
    let mut stream = reply
        .map_err(|status| node.explain(&doing, status))?
        .into_inner();
    // Only after the node has agreed: a refusal leaves no file behind.
    let mut target = match to_file {
        true => Target::create(&arguments.file, arguments.force)?,
        false => Target::StandardOutput,
    };

    let mut records = PcapRecords::default();
    let over = over(arguments.duration);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(over, interrupted);
    let ended = loop {
        let message = tokio::select! {
            message = stream.message() => message,
            () = &mut over => break Ok(()),
            heard = &mut interrupted => {
                break heard.map_err(|error| Failure::io("cannot wait for ^C", error));
            }
        };
        match message {
            Ok(Some(data)) => match records.push(&data.bytes) {
                Ok(whole) => target.write(&whole)?,
                Err(error) => break Err(Failure::new(FailureKind::Failed, &doing).because(error)),
            },
            Ok(None) => break Ok(()),
            // The end that the user asked for with --duration.
            Err(status)
                if status.code() == Code::DeadlineExceeded && arguments.duration.is_some() =>
            {
                break Ok(());
            }
            Err(status) => break Err(node.explain(&doing, status)),
        }
    };
    let packets = records.packets();
    // The packets of a capture that broke off are of use as well.
    let name = target.finish()?;
    ended?;
    match name {
        None => Ok(()),
        Some(name) => global.output.show(
            || match packets {
                1 => format!("wrote 1 packet to {name}"),
                _ => format!("wrote {packets} packets to {name}"),
            },
            || serde_json::json!({ "node": node.name(), "file": name, "packets": packets }),
        ),
    }
}

/// Waits until the node should have ended the capture; some nodes do not apply a deadline to a stream.
async fn over(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration + REST).await,
        None => pending().await,
    }
}

/// The target of the capture.
enum Target {
    StandardOutput,
    File { name: String, file: PrivateFile },
}

impl Target {
    fn create(path: &Path, force: bool) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = private_file::create(path, force)?;
        Ok(Self::File { name, file })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::StandardOutput => print_bytes(bytes),
            Self::File { name, file } => file
                .write_all(bytes)
                .map_err(|error| Failure::io(format!("cannot write {name}"), error)),
        }
    }
    /// Puts the file in its place; returns its name.
    fn finish(self) -> Result<Option<String>, Failure> {
        match self {
            Self::StandardOutput => Ok(None),
            Self::File { name, file } => {
                let written = file.finish();
                written
                    .map_err(|error| Failure::io(format!("cannot write {name}"), error))
                    .map(|()| Some(name))
            }
        }
    }
}
