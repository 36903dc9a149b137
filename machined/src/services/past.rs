//! The past of a service that lives on: its record and the end of its log, which one machined leaves and the next recalls.

use std::time::Duration;

use super::carried::{Carried, LONGEST_RECORD};
use super::log_disk::LogDisk;
use super::log_ring::LONGEST_LOG;
use super::restart::Restarts;
use super::service::Service;

/// An earlier machined's record of a service that lives on.
#[derive(Default)]
pub(super) struct Past {
    pub(super) restarts: Restarts,
    /// Running time up to then.
    pub(super) ran: Duration,
    /// How many of its processes the kernel had killed for lack of memory when its run began; None if that is not known.
    pub(super) memory_kills: Option<u64>,
}

impl Past {
    /// Recalls the record that an earlier machined left, with which the service goes on; None if there is none that can be read.
    pub(super) fn recall(service: &Service) -> Option<Self> {
        let record = service.definition.workload.record(LONGEST_RECORD);
        let carried =
            record.and_then(|record| record.as_deref().map(Carried::from_text).transpose());
        match carried {
            Ok(carried) => {
                let carried = carried?;
                let past = Past {
                    restarts: Restarts::after_failures(carried.failures),
                    ran: carried.has_run(),
                    memory_kills: carried.memory_kills,
                };
                service.status.send_modify(|status| carried.recall(status));
                Some(past)
            }
            Err(error) => {
                let id = &service.definition.id;
                tracing::warn!("service {id}: what was known of it is lost: {error:#}");
                None
            }
        }
    }

    /// Leaves the record to the next machined.
    pub(super) fn leave(&self, service: &Service) {
        let workload = &service.definition.workload;
        let record = self.record(service);
        let left = record.and_then(|record| workload.leave_record(&record));
        if let Err(error) = left {
            let id = &service.definition.id;
            tracing::warn!(
                "service {id}: it runs on, and what is known of it ends here: {error:#}"
            );
        }
    }

    /// Notes the record of a service whose run begins, for a machined that starts again without a word of this one.
    pub(super) fn note(&self, service: &Service) {
        let workload = &service.definition.workload;
        let record = self.record(service);
        let noted = record.and_then(|record| workload.note_record(&record));
        if let Err(error) = noted {
            let id = &service.definition.id;
            tracing::debug!("service {id}: what is known of it would end with machined: {error:#}");
        }
    }

    fn record(&self, service: &Service) -> anyhow::Result<String> {
        Carried::of(&service.status(), self.restarts.failures(), self.ran)
            .with_memory_kills(self.memory_kills)
            .to_text()
    }
}

/// Leaves the part of the log that is stored nowhere else: every line, if no disk holds the log, or those that a full disk refuses.
pub(super) fn leave_log(service: &Service, disk: &LogDisk) {
    let (id, log) = (&service.definition.id, &service.log);
    let log = match disk.refused_from(id) {
        _ if !disk.is_there() => log.contents(),
        Some(refused) => log.contents_from(refused),
        None => log.unfinished(),
    };
    if let Err(error) = service.definition.workload.leave_log(&log) {
        tracing::warn!("service {id}: it runs on, and the end of its log is lost: {error:#}");
    }
}

/// Continues the log where an earlier machined left it. The copy stays.
pub(super) fn recall_log(service: &Service) {
    match service.definition.workload.left_log(LONGEST_LOG) {
        Ok(Some(log)) => service.log.inherit(&log),
        Ok(None) => {}
        Err(error) => {
            let id = &service.definition.id;
            tracing::warn!("service {id}: the end of its previous log is lost: {error:#}");
        }
    }
}
