//! A hostile DHCP server.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use instar_qemu::{Vm, VmSpec, lease_port};
use instar_tests::{HostileDhcpServer, ImageUnderTest, Outcome, Scratch, Test, tests};

use crate::PATIENCE;

pub(crate) fn tests() -> Vec<Test> {
    tests![any_answer_of_a_dhcp_server_is_survived]
}

async fn any_answer_of_a_dhcp_server_is_survived(scratch: Scratch) -> Outcome {
    let cable = UdpSocket::bind("127.0.0.1:0").context("cannot bind a UDP port")?;
    // The lease of the TCP port keeps the UDP port free as well: no other process gets the same number.
    let card = lease_port()?;
    let spec = on_cable(cable.local_addr()?, card.port())?;
    let server = HostileDhcpServer::start(cable, card.port())?;
    let vm = Vm::start(&spec, &scratch.join("node"))?;
    let lease = vm.wait_for_line("DHCP lease", PATIENCE)?.text;
    println!("{lease}, after {} damaged answers", server.damaged());
    ensure!(lease.contains(HostileDhcpServer::OFFERED), "{lease}");
    // The damaged offers and the damaged acknowledgements.
    ensure!(server.damaged() > 3000, "{} were sent", server.damaged());
    let has_died = vm.console().contains("starting machined again");
    ensure!(!has_died, "machined died of one");
    Ok(())
}

/// Plans a machine whose card is on the server's cable.
fn on_cable(server: SocketAddr, card: u16) -> Result<VmSpec> {
    let image = ImageUnderTest::first()?;
    let cable = format!("socket,id=cable,udp={server},localaddr=127.0.0.1:{card}");
    Ok(VmSpec::kernel(image.kernel(), image.initramfs())
        .extra_argument("-netdev")
        .extra_argument(cable)
        .extra_argument("-device")
        .extra_argument("virtio-net-pci,netdev=cable,romfile="))
}
