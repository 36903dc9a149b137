//! `read`: a file of the node.

use instar_client::Failure;

use crate::cli::Global;
use crate::output::print_bytes;
use crate::target;

pub(super) async fn run(global: &Global, path: &str) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let mut stream = node.open(path).await?;
    let doing = format!("cannot read {path}");
    while let Some(data) = stream
        .message()
        .await
        .map_err(|status| node.explain(&doing, status))?
    {
        print_bytes(&data.bytes)?;
    }
    Ok(())
}
