//! `copy`: files of the node, unpacked here or as an archive.

use std::io::{self, Read};
use std::path::Path;

use flate2::read::GzDecoder;
use instar_api::machine::CopyRequest;
use instar_client::Failure;
use tokio::sync::mpsc;

use crate::cli::Global;
use crate::output::{Output, print_bytes};
use crate::target;

/// The target that stands for standard output: the archive stays packed.
const STANDARD_OUTPUT: &str = "-";

pub(super) async fn run(global: &Global, path: &str, target: &Path) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let doing = format!("cannot copy {path}");
    let explain = |status| node.explain(&doing, status);
    let request = CopyRequest {
        root_path: path.to_owned(),
    };
    let reply = node.machine().copy(node.request(request)).await;
    let mut stream = reply.map_err(explain)?.into_inner();
    if target == Path::new(STANDARD_OUTPUT) {
        while let Some(data) = stream.message().await.map_err(explain)? {
            print_bytes(&data.bytes)?;
        }
        return Ok(());
    }
    let (sender, receiver) = mpsc::channel(8);
    let directory = target.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || unpack(Pieces::new(receiver), &directory));
    let mut broken = None;
    // On standard error, and only on a terminal: indicatif finds that out by itself. No total, as the node does not know the size.
    let bar = match global.output {
        Output::Table => indicatif::ProgressBar::no_length(),
        Output::Json | Output::Yaml => indicatif::ProgressBar::hidden(),
    };
    let style = indicatif::ProgressStyle::with_template(
        "{spinner} {bytes} packed, {bytes_per_sec} {wide_msg}",
    );
    bar.set_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_spinner()));
    bar.set_message(path.to_owned());
    loop {
        match stream.message().await {
            // The unpacking has failed, and its error is reported below.
            Ok(Some(data)) => {
                bar.inc(data.bytes.len() as u64);
                if sender.send(data.bytes).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(status) => {
                broken = Some(status);
                break;
            }
        }
    }
    bar.finish_and_clear();
    drop(sender);
    let unpacked = unpacking.await.map_err(io::Error::other).flatten();
    if let Some(status) = broken {
        return Err(explain(status));
    }
    unpacked.map_err(|error| Failure::io(format!("cannot unpack to {}", target.display()), error))
}

/// Unpacks an archive. No file of it lands outside of the directory; files get our owner.
fn unpack(packed: impl Read, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    tar::Archive::new(GzDecoder::new(packed)).unpack(directory)
}

/// A reader of the pieces that come over a channel; it blocks.
struct Pieces {
    receiver: mpsc::Receiver<Vec<u8>>,
    piece: io::Cursor<Vec<u8>>,
}

impl Pieces {
    fn new(receiver: mpsc::Receiver<Vec<u8>>) -> Self {
        Self {
            receiver,
            piece: io::Cursor::default(),
        }
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.piece.read(buffer)? {
                0 if buffer.is_empty() => return Ok(0),
                0 => match self.receiver.blocking_recv() {
                    Some(piece) => self.piece = io::Cursor::new(piece),
                    None => return Ok(0),
                },
                length => return Ok(length),
            }
        }
    }
}
