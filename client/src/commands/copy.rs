//! `copy`: files of the node, unpacked here or as an archive.

use std::io::{self, Read};
use std::path::Path;

use flate2::read::GzDecoder;
use indicatif::{ProgressBar, ProgressStyle};
use instar_api::common::Data;
use instar_api::machine::CopyRequest;
use instar_base::blocking_io;
use instar_client::Failure;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

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
    let unpacking = blocking_io::to_its_end(move || unpack(Pieces::new(receiver), &directory));
    // On standard error, and only on a terminal: indicatif finds that out by itself. No total, as the node does not know the size.
    let bar = match global.output {
        Output::Table => ProgressBar::no_length(),
        Output::Json | Output::Yaml => ProgressBar::hidden(),
    };
    let style =
        ProgressStyle::with_template("{spinner} {bytes} packed, {bytes_per_sec} {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_message(path.to_owned());
    let (passed_on, unpacked) = tokio::join!(pass_on(stream, sender, &bar), unpacking);
    bar.finish_and_clear();
    passed_on.map_err(explain)?;
    let unpacked = unpacked.map_err(io::Error::other).flatten();
    unpacked.map_err(|error| Failure::io(format!("cannot unpack to {}", target.display()), error))
}

/// Passes the pieces of a stream on, until it ends or nobody takes them.
async fn pass_on(
    mut pieces: Streaming<Data>,
    taker: mpsc::Sender<Vec<u8>>,
    bar: &ProgressBar,
) -> Result<(), Status> {
    while let Some(data) = pieces.message().await? {
        bar.inc(data.bytes.len() as u64);
        // The unpacking has failed, and its caller has the error.
        if taker.send(data.bytes).await.is_err() {
            break;
        }
    }
    Ok(())
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
