//! `image-load ADDRESS/NAME:TAG DIRECTORY` pulls an image into an empty store by plain HTTP, as machined does, and prints one flat object:
//! the time that it took, the processor's time, and the most memory that the process ever had.
//!
//! The decision: a process of its own around the crate that machined pulls with. To measure machined in a machine was the other choice: its peak of
//! memory is that of everything else too, and containerd and others are measured in turns with it on the same host.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use instar_oci::{ImageStore, Keeps, Limits, Policy, Puller, Registries};
use instar_values::{ImageReference, Mirror, MirrorEndpoint};

fn main() -> ExitCode {
    match measure() {
        Ok(numbers) => {
            println!("{numbers}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("image-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> anyhow::Result<String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, directory] = &arguments[..] else {
        bail!("usage: image-load ADDRESS/NAME:TAG DIRECTORY");
    };
    let reference: ImageReference = name.parse()?;
    let begun = Instant::now();
    // One thread for the network, as machined has.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(pull(&reference, Path::new(directory)))?;
    let wall = begun.elapsed().as_millis();
    let (cpu, peak) = (processor_ms()?, peak_kib()?);
    Ok(format!(
        r#"{{"wall_ms":{wall},"cpu_ms":{cpu},"peak_kib":{peak}}}"#
    ))
}

async fn pull(reference: &ImageReference, directory: &Path) -> anyhow::Result<()> {
    let endpoint = MirrorEndpoint {
        url: format!("http://{}", reference.registry()).parse()?,
        override_path: false,
    };
    let mirror = Mirror {
        endpoints: vec![endpoint],
        skip_fallback: true,
    };
    let registries = Registries {
        mirrors: [(reference.registry().to_owned(), mirror)].into(),
        ..Registries::default()
    };
    let puller = Puller::new(Arc::new(registries), Policy::default());
    let image = puller.look_up(reference).await?;
    let store = ImageStore::new(directory.to_owned(), Keeps::Blobs);
    puller.pull(&image, &store, &Limits::default()).await?;
    Ok(())
}

/// Time of all threads in user and kernel mode, in milliseconds: fields 14 and 15 of /proc/self/stat, in hundredths of a second
/// (proc_pid_stat(5)).
fn processor_ms() -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').context("no name in stat")?.1;
    let fields = after_name.split_whitespace().skip(11).take(2);
    let mut ticks = 0;
    for field in fields {
        ticks += field.parse::<u64>()?;
    }
    Ok(ticks * 10)
}

/// The largest resident size so far, in KiB.
fn peak_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.context("no VmHWM in status")?.trim();
    Ok(kib.trim_end_matches(" kB").parse()?)
}
