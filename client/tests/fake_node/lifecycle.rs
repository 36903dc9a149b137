//! The first half of an upgrade: pulls the image, then prepares it with the output that the test sets.

use instar_api::machine as wire;
use instar_api::machine::image_service_pull_response::Response as Pulled;
use instar_api::machine::image_service_server::ImageService;
use instar_api::machine::lifecycle_service_install_progress::Response as Told;
use instar_api::machine::lifecycle_service_server::LifecycleService;
use tonic::codegen::BoxStream;
use tonic::{Request, Response};

use super::{Answer, Api};

#[tonic::async_trait]
impl ImageService for Api {
    async fn pull(
        &self,
        request: Request<wire::ImageServicePullRequest>,
    ) -> Answer<BoxStream<wire::ImageServicePullResponse>> {
        self.0.act()?;
        let name = format!("{}@sha256:0", request.into_inner().image_ref);
        let pulled = wire::ImageServicePullResponse {
            response: Some(Pulled::Name(name)),
        };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(pulled)]))))
    }

    async fn verify(
        &self,
        request: Request<wire::ImageServiceVerifyRequest>,
    ) -> Answer<wire::ImageServiceVerifyResponse> {
        Ok(Response::new(wire::ImageServiceVerifyResponse {
            verified: false,
            message: "no matched rule".to_owned(),
            digested_image_ref: format!("{}@sha256:0", request.into_inner().image_ref),
        }))
    }
}

#[tonic::async_trait]
impl LifecycleService for Api {
    async fn upgrade(
        &self,
        _: Request<wire::LifecycleServiceUpgradeRequest>,
    ) -> Answer<BoxStream<wire::LifecycleServiceUpgradeResponse>> {
        let (lines, code) = self.0.state().preparation.clone();
        let lines = lines
            .into_iter()
            .map(|line| Told::Message(format!("{line}\n")));
        let told = lines
            .chain(code.map(Told::ExitCode))
            .map(|told| {
                Ok(wire::LifecycleServiceUpgradeResponse {
                    progress: Some(wire::LifecycleServiceInstallProgress {
                        response: Some(told),
                    }),
                })
            })
            .collect::<Vec<_>>();
        Ok(Response::new(Box::pin(tokio_stream::iter(told))))
    }
}
