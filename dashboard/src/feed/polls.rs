//! Asks for figures every few seconds. Missing answers are skipped; a node that answers nothing counts as away.

use std::time::Duration;

use instar_client::Node;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::{Response, Status};

use super::{Teller, is_refusal, reason};
use crate::known::Update;

/// Timeout: a node that answers none of the calls within this time counts as away.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn run(node: Node, every: Duration, teller: Teller) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match timeout(PATIENCE, ask(&node)).await {
            Ok(answers) => tell(answers, &teller).await,
            Err(_) => {
                let why = format!("no answer within {} s", PATIENCE.as_secs());
                teller.tell(Update::Lost(why)).await;
            }
        }
    }
}

async fn ask(node: &Node) -> Vec<Result<Update, Status>> {
    /// The first element of a reply, as an update.
    macro_rules! ask {
        ($method:ident, $update:expr) => {
            async {
                let reply: Response<_> = node.machine().$method(node.request(())).await?;
                let first = reply.into_inner().messages.into_iter().next();
                Ok(first.map($update))
            }
        };
    }
    let answers = tokio::join!(
        ask!(load_avg, Update::Load),
        ask!(memory, |memory| Update::Memory(
            memory.meminfo.unwrap_or_default()
        )),
        ask!(system_stat, Update::System),
        ask!(cpu_freq_stats, |all| Update::Frequencies(
            all.cpu_freq_stats
        )),
        ask!(cpu_info, |all| Update::Processors(all.cpu_info)),
        ask!(network_device_stats, Update::Network),
        ask!(disk_stats, Update::Disks),
        ask!(processes, |all| Update::Processes(all.processes)),
        ask!(service_list, |all| Update::Services(all.services)),
    );
    let (load, memory, system, speeds, processors, network, disks, processes, services) = answers;
    [
        load, memory, system, speeds, processors, network, disks, processes, services,
    ]
    .into_iter()
    .filter_map(Result::transpose)
    .collect()
}

async fn tell(answers: Vec<Result<Update, Status>>, teller: &Teller) {
    let answered = |answer: &Result<Update, Status>| match answer {
        Ok(_) => true,
        Err(status) => is_refusal(status.code()),
    };
    if answers.iter().any(answered) {
        teller.tell(Update::Reached).await;
    } else if let Some(Err(status)) = answers.first() {
        teller.tell(Update::Lost(reason(status))).await;
    }
    for update in answers.into_iter().flatten() {
        teller.tell(update).await;
    }
}
