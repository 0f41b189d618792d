//! The answers to refused requests, all in one format (RFC 9457).

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The content type of an answer to a refused request.
pub(crate) const PROBLEM: &str = "application/problem+json";

/// The result of a change for the audit log. The handler stores it in the extensions of the answer.
#[derive(Clone, Debug)]
pub(crate) struct Outcome(pub(crate) String);

/// The reason why a request failed (RFC 9457).
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Trouble {
    /// A short title of the problem.
    pub(crate) title: &'static str,
    /// The HTTP status code.
    pub(crate) status: u16,
    /// The problem, in one sentence.
    pub(crate) detail: String,
    /// The invalid field: its path in the document, with dots between the names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
}

pub(crate) fn trouble(status: StatusCode, title: &'static str, detail: &str) -> Response {
    let detail = detail.to_owned();
    problem(&Trouble { title, status: status.as_u16(), detail, field: None }, status)
}

pub(crate) fn problem(trouble: &Trouble, status: StatusCode) -> Response {
    let text = serde_json::to_string_pretty(trouble).expect("our types serialize to JSON");
    let mut answer = (status, [(header::CONTENT_TYPE, PROBLEM)], text + "\n").into_response();
    answer.extensions_mut().insert(Outcome(format!("refused: {}", trouble.detail)));
    answer
}
