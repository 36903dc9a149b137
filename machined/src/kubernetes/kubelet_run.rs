//! The run of kubelet that is going on, as kubernetes-init tells it.

use std::path::Path;

use instar_kubernetes_plan::{STATUS, Status};

use super::control;
use crate::base::whole_file;

/// The service's name in the status.
const KUBELET: &str = "kubelet";

/// One run of kubelet: the values differ from those of the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KubeletRun {
    /// Its process, by its number in the container.
    pub pid: Option<u32>,
    /// The number of its starts after the first one in this container.
    pub restarts: u64,
}

/// Reads the run of kubelet; `None` while there is no status, or none of kubelet. Blocks.
pub fn kubelet_run() -> Option<KubeletRun> {
    read(&control().join(STATUS))
}

fn read(status: &Path) -> Option<KubeletRun> {
    let status = whole_file::read_json::<Status>(status);
    let status = status.unwrap_or_else(|error| {
        tracing::warn!("nobody knows whether kubelet has started again: {error:#}");
        None
    });
    let kubelet = status?.services.remove(KUBELET)?;
    Some(KubeletRun {
        pid: kubelet.pid,
        restarts: kubelet.restarts,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_run_is_that_of_the_status() {
        let directory = tempfile::tempdir().unwrap();
        let status = directory.path().join(STATUS);
        let written = |text: &str| {
            std::fs::write(&status, text).unwrap();
            read(&status)
        };
        assert_eq!(read(&status), None);
        assert_eq!(written("{"), None);
        assert_eq!(written(r#"{"services":{}}"#), None);
        let service =
            r#"{"extension":"kubernetes","state":"running","pid":40,"since":1,"restarts":2}"#;
        let found = written(&format!(r#"{{"services":{{"kubelet":{service}}}}}"#));
        let expected = KubeletRun {
            pid: Some(40),
            restarts: 2,
        };
        assert_eq!(found, Some(expected));
    }
}
