//! The listening socket at which workers ask for certificates. machined makes it and apid serves it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use instar_api::CERTIFICATES_PORT;
use tokio::sync::watch;

use crate::sys::listen;

/// A listening socket; clones share it.
#[derive(Debug, Clone)]
pub struct WorkersPort(Arc<OwnedFd>);

impl AsFd for WorkersPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens the port, or closes it. Returns whether it is as it should be.
pub fn open_or_close(port: &watch::Sender<Option<WorkersPort>>, is_open: bool) -> bool {
    if port.borrow().is_some() == is_open {
        return true;
    }
    if !is_open {
        port.send_replace(None);
        return true;
    }
    match listen::on_all_addresses(CERTIFICATES_PORT) {
        Ok(socket) => {
            tracing::info!("certificates for workers are signed on port {CERTIFICATES_PORT}");
            port.send_replace(Some(WorkersPort(Arc::new(socket))));
            true
        }
        Err(error) => {
            tracing::warn!(
                "no certificates for workers yet: cannot listen on port {CERTIFICATES_PORT}: {error}"
            );
            false
        }
    }
}
