//! `man`: manual pages from the definitions that the arguments are parsed by.

use std::path::Path;

use clap::CommandFactory;
use instar_client::Failure;

use crate::cli::Cli;

pub(super) fn run(directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .map_err(|error| {
            Failure::io(
                format!("cannot write manual pages to {}", directory.display()),
                error,
            )
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        run(directory.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(page("instarctl.1").contains("instarctl\\-netstat(1)"));
        assert!(page("instarctl-pcap.1").contains("bpf\\-filter"));
        assert!(page("instarctl-image-pull.1").contains("Pull an image"));
    }
}
