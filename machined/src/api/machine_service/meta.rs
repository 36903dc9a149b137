//! Calls about META, values that clients leave with a machine.

use instar_api::machine as wire;
use tonic::{Request, Response, Status};

use super::{MachineApi, Reply};
use crate::api::caller::{self, Holder};
use crate::api::caller_credentials::CallerCredentials;
use crate::api::{blocking, changing};
use crate::base::error_chain::chain;
use crate::meta::{Meta, MetaError};
use crate::operation_lock::Operation;

pub(super) async fn meta_write(
    api: &MachineApi,
    request: Request<wire::MetaWriteRequest>,
) -> Reply<wire::MetaWriteResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let by = (Holder::of(&request), CallerCredentials::of(&request));
    let wire::MetaWriteRequest { key, value } = request.into_inner();
    change_meta(api, key, by, move |meta, key| meta.write(key, &value)).await?;
    Ok(Response::new(wire::MetaWriteResponse {
        messages: vec![wire::MetaWrite { metadata }],
    }))
}

pub(super) async fn meta_delete(
    api: &MachineApi,
    request: Request<wire::MetaDeleteRequest>,
) -> Reply<wire::MetaDeleteResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let by = (Holder::of(&request), CallerCredentials::of(&request));
    change_meta(api, request.get_ref().key, by, Meta::delete).await?;
    Ok(Response::new(wire::MetaDeleteResponse {
        messages: vec![wire::MetaDelete { metadata }],
    }))
}

async fn change_meta(
    api: &MachineApi,
    key: u32,
    (holder, credentials): (Holder, Option<CallerCredentials>),
    change: impl FnOnce(&Meta, u8) -> Result<(), MetaError> + Send + 'static,
) -> Result<(), Status> {
    let key = u8::try_from(key)
        .map_err(|_| Status::invalid_argument(format!("{key} is no key: they are 0 to 255")))?;
    if api.machine.disk.status().borrow().state.is_none() {
        return Err(meta_status(MetaError::NoState));
    }
    let meta = api.meta.clone();
    changing::alone(
        &api.machine,
        credentials,
        Operation::MetaChange,
        async move {
            blocking::once(&holder, move || Ok(change(&meta, key)))
                .await?
                .map_err(meta_status)
        },
    )
    .await
}

fn meta_status(error: MetaError) -> Status {
    let text = chain(&error);
    match error {
        MetaError::NoState => Status::failed_precondition(text),
        MetaError::Unknown(_) => Status::not_found(text),
        MetaError::Full => Status::resource_exhausted(text),
        MetaError::Io { .. } => Status::internal(text),
    }
}
