//! Queries to a connected controller. They never block, so futures on the control loop can await
//! them; other threads block on them.

use super::Association;
use super::connecting::wire_identity;
use crate::admin::{self, check_request};
use crate::authentication;
use crate::control::reply;
use crate::error::Error;
use crate::exchange::Exchange;
use crate::limits;
use crate::shared::AdminRequest;
use farblock_proto::host::command::{self, LogPage};
use farblock_proto::host::{
    AnaLog, Command, CommandLimits, ConnectError, DiscoveryEntry, DiscoveryReader, DiscoveryStep,
    InfoError, NamespaceInfo, ana_log_page, parse_namespace_list,
};
use farblock_wire::identify::Cns;
use farblock_wire::log::AnaState;
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::{Cqe, Status};
use std::sync::atomic::Ordering;

/// The admin queue of a connected controller, which other callers use at the same time.
struct Live<'a> {
    association: &'a Association,
    /// Set if the connection was lost during the exchange.
    lost: Option<Error>,
}

impl Exchange for Live<'_> {
    async fn execute(
        &mut self,
        command: &Command,
        data: &[u8],
        _: &'static str,
    ) -> Result<(Cqe, Vec<u8>), ConnectError> {
        let done = self.association.admin(command, data).await;
        done.map_err(|error| {
            let sentence = error.to_string();
            if matches!(error, Error::Lost(_)) {
                self.lost = Some(error);
                return ConnectError::Io(sentence);
            }
            ConnectError::AuthenticationFailed(sentence)
        })
    }
}

impl Association {
    /// Implements [`Controller::end_other`](crate::Controller::end_other).
    pub(crate) async fn end_other(&self, other: CrossControllerReset) -> Result<bool, Error> {
        let (cqe, _) = self.admin(&command::cross_controller_reset(other), &[]).await?;
        let status = cqe.status();
        match Status(status.code()) {
            Status::SUCCESS => Ok(cqe.result() & CrossControllerReset::IMMEDIATE != 0),
            Status::CROSS_CONTROLLER_RESET_IN_PROGRESS
            | Status::CROSS_CONTROLLER_RESET_LOG_FULL
            | Status::CROSS_CONTROLLER_RESET_LIMIT => Ok(false),
            _ => Err(Error::Command { what: "Cross-Controller Reset".to_owned(), status }),
        }
    }

    /// Implements [`Controller::access`](crate::Controller::access).
    pub(crate) async fn access(&self, nsid: u32) -> Result<AnaState, Error> {
        let Some(groups) = self.info.ana_groups else { return Ok(AnaState::OPTIMIZED) };
        let group = self.namespace_info(nsid).await?.ana_group;
        if group == 0 {
            return Ok(AnaState::OPTIMIZED);
        }
        let data = self.log_page(ana_log_page(groups)).await?;
        let answer = |reason| Error::Answer { what: "the ANA log page".to_owned(), reason };
        let state = AnaLog::parse(&data).map_err(answer)?.state(group);
        // If the log page does not list the namespace's group yet, the group's state is about to
        // change.
        Ok(state.unwrap_or(AnaState::CHANGE))
    }

    /// Implements [`Controller::authenticate`](crate::Controller::authenticate).
    pub(crate) async fn authenticate(&self) -> Result<(), Error> {
        if self.options.dhchap_secret.is_none() {
            let what = "this host has no authentication secret: set it with --dhchap-secret";
            return Err(Error::Options(what.to_owned()));
        }
        if self.authenticates.swap(true, Ordering::Acquire) {
            return Err(Error::Options("reauthentication is already in progress".to_owned()));
        }
        let identity = wire_identity(&self.identity, &self.subsystem);
        let mut live = Live { association: self, lost: None };
        let done = authentication::authenticate(&mut live, &identity, &self.options).await;
        self.authenticates.store(false, Ordering::Release);
        done.map_err(|reason| match (reason, live.lost) {
            // A lost connection is not an authentication failure.
            (ConnectError::Io(_), Some(lost)) => lost,
            (reason, _) => Error::Authentication {
                address: self.address.to_string(),
                subsystem: self.subsystem.clone(),
                reason,
            },
        })
    }

    /// Implements [`Controller::admin`](crate::Controller::admin).
    pub(crate) async fn admin(
        &self,
        command: &Command,
        data: &[u8],
    ) -> Result<(Cqe, Vec<u8>), Error> {
        check_request(command, data)?;
        let (reply, answer) = reply();
        let shared = &self.shared;
        shared.request(AdminRequest { command: *command, data: data.to_vec(), reply })?;
        // If the admin queue ends without an answer, it drops the sender.
        answer.await.unwrap_or_else(|| Err(shared.lost_error()))
    }

    /// Executes an admin command that sends no data to the controller. Returns an error if the
    /// controller fails the command.
    async fn query(&self, command: &Command, what: impl Fn() -> String) -> Result<Vec<u8>, Error> {
        let (cqe, data) = self.admin(command, &[]).await?;
        let status = cqe.status();
        if status.is_success() { Ok(data) } else { Err(Error::Command { what: what(), status }) }
    }

    /// Implements [`Controller::identify`](crate::Controller::identify).
    pub(crate) async fn identify(&self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Error> {
        self.query(&command::identify(cns, nsid), || format!("Identify, {cns}")).await
    }

    /// Implements [`Controller::log_page`](crate::Controller::log_page).
    pub(crate) async fn log_page(&self, log: LogPage) -> Result<Vec<u8>, Error> {
        let page = log.page;
        let data = self.query(&command::log_page(log), || format!("Get Log Page, {page}")).await?;
        if data.len() < log.bytes as usize {
            let what = format!("log page {page}");
            return Err(Error::Answer { what, reason: InfoError::TooShort });
        }
        Ok(data)
    }

    /// Implements [`Controller::namespace_ids`](crate::Controller::namespace_ids).
    pub(crate) async fn namespace_ids(&self) -> Result<Vec<u32>, Error> {
        let mut all = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let data = self.identify(Cns::ACTIVE_NAMESPACES, after).await?;
            let (list, full) = parse_namespace_list(&data, after).map_err(|reason| {
                Error::Answer { what: "the list of namespaces".to_owned(), reason }
            })?;
            all.extend(list);
            // No namespace has a larger identifier.
            let exhausted = all.last().is_some_and(|&last| last >= u32::MAX - 1);
            if !full || exhausted || all.len() >= limits::NAMESPACES {
                return Ok(all);
            }
        }
    }

    /// Implements [`Controller::namespace_info`](crate::Controller::namespace_info).
    pub(crate) async fn namespace_info(&self, nsid: u32) -> Result<NamespaceInfo, Error> {
        let data = self.identify(Cns::NAMESPACE, nsid).await?;
        let mut info = NamespaceInfo::parse(nsid, &data)
            .map_err(|reason| Error::Answer { what: format!("namespace {nsid}"), reason })?;
        match self.identify(Cns::NAMESPACE_ID_DESCRIPTORS, nsid).await {
            Ok(data) => info.add_descriptors(&data),
            Err(Error::Command { status, .. }) if admin::has_no_descriptors(status) => {}
            // Do not ignore this error: otherwise a namespace with identifiers would look like one
            // without.
            Err(error) => return Err(error),
        }
        Ok(info)
    }

    /// Implements [`Controller::namespaces`](crate::Controller::namespaces).
    pub(crate) async fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        let mut infos = Vec::new();
        for nsid in self.namespace_ids().await? {
            match self.namespace_info(nsid).await {
                Ok(info) => infos.push(info),
                Err(Error::Answer { what, reason }) => tracing::warn!("{what}: {reason}"),
                Err(error) => return Err(error),
            }
        }
        Ok(infos)
    }

    /// The controller's limits for single commands. Older controllers report none and get the
    /// defaults.
    pub(crate) async fn command_limits(&self) -> Result<CommandLimits, Error> {
        match self.identify(Cns::COMMAND_SET_CONTROLLER, 0).await {
            Ok(data) => Ok(CommandLimits::parse(&data)),
            Err(Error::Command { .. }) => Ok(CommandLimits::default()),
            Err(error) => Err(error),
        }
    }

    /// Implements [`Controller::discovery`](crate::Controller::discovery).
    pub(crate) async fn discovery(&self) -> Result<Vec<DiscoveryEntry>, Error> {
        let mut reader = DiscoveryReader::new();
        while let DiscoveryStep::Read(log) = reader.step() {
            let data = self.log_page(log).await?;
            reader.handle_data(&data).map_err(|reason| Error::Answer {
                what: "the discovery log page".to_owned(),
                reason,
            })?;
        }
        Ok(reader.into_entries())
    }
}
