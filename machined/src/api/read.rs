//! `Read`: a regular file's content, for administrators.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};

use instar_api::common::{Data, Metadata};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Bytes per message.
const CHUNK: usize = 32 * 1024;

/// The stream of a file's content.
pub(super) async fn stream(
    path: String,
    metadata: Option<Metadata>,
) -> Result<ReceiverStream<Result<Data, Status>>, Status> {
    if !path.starts_with('/') {
        return Err(Status::invalid_argument(format!(
            "{path:?} is not an absolute path"
        )));
    }
    // Reading may wait for a disk; it happens on a thread of its own.
    let opened = tokio::task::spawn_blocking(move || open(&path)).await;
    let mut file = opened.map_err(|error| Status::internal(error.to_string()))??;
    let (sender, receiver) = mpsc::channel(4);
    tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; CHUNK];
        loop {
            let message = match file.read(&mut bytes) {
                Ok(0) => return,
                Ok(length) => Ok(Data {
                    metadata: metadata.clone(),
                    bytes: bytes[..length].to_vec(),
                }),
                Err(error) => Err(Status::internal(format!("read: {error}"))),
            };
            let failed = message.is_err();
            if sender.blocking_send(message).is_err() || failed {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(receiver))
}

fn open(path: &str) -> Result<File, Status> {
    // Not blocking, so that a FIFO without a writer does not hold a thread for ever.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| {
            let text = format!("{path}: {error}");
            match error.kind() {
                std::io::ErrorKind::NotFound => Status::not_found(text),
                std::io::ErrorKind::PermissionDenied => Status::permission_denied(text),
                _ => Status::internal(text),
            }
        })?;
    let kind = file
        .metadata()
        .map_err(|error| Status::internal(format!("{path}: {error}")))?
        .file_type();
    if kind.is_file() {
        return Ok(file);
    }
    let what = if kind.is_dir() {
        "a directory"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "no regular file"
    };
    Err(Status::invalid_argument(format!(
        "{path} is {what}; only regular files can be read"
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio_stream::StreamExt as _;

    #[tokio::test]
    async fn files_of_proc_are_read_to_their_end() {
        let mut stream = stream("/proc/sys/kernel/random/boot_id".into(), None)
            .await
            .unwrap();
        let mut content = Vec::new();
        while let Some(message) = stream.next().await {
            content.extend(message.unwrap().bytes);
        }
        assert_eq!(content.len(), 37);
    }

    #[tokio::test]
    async fn what_is_no_file_is_refused() {
        for (path, code) in [
            ("relative", tonic::Code::InvalidArgument),
            ("/", tonic::Code::InvalidArgument),
            ("/dev/null", tonic::Code::InvalidArgument),
            ("/no/such/file", tonic::Code::NotFound),
        ] {
            assert_eq!(
                stream(path.into(), None).await.err().unwrap().code(),
                code,
                "{path}"
            );
        }
    }
}
