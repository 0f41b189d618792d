//! JSON-RPC 2.0: requests, batches of requests, and answers.

use super::limits::{MAX_BATCH, MAX_BATCH_BYTES};
use farblock_state::parse_json;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// The result of a method.
pub(super) type Answer = Result<Value, RpcError>;

/// An error: SPDK's number and text, on which clients match, and a sentence for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<String>,
}

/// The error codes of JSON-RPC.
pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMETERS: i64 = -32602;
pub(super) const INTERNAL_ERROR: i64 = -32603;
/// The code if the method exists, but clients cannot call it now.
pub(super) const INVALID_STATE: i64 = -1;

/// The errno values in SPDK's answers, with their texts from the C library.
#[derive(Clone, Copy)]
pub(super) enum Errno {
    NotPermitted,
    NotFound,
    OutOfMemory,
    AccessDenied,
    Busy,
    Exists,
    NoDevice,
    Invalid,
    NoSpace,
    NotSupported,
    NoKey,
}

impl Errno {
    fn number_and_words(self) -> (i64, &'static str) {
        match self {
            Self::NotPermitted => (1, "Operation not permitted"),
            Self::NotFound => (2, "No such file or directory"),
            Self::OutOfMemory => (12, "Cannot allocate memory"),
            Self::AccessDenied => (13, "Permission denied"),
            Self::Busy => (16, "Device or resource busy"),
            Self::Exists => (17, "File exists"),
            Self::NoDevice => (19, "No such device"),
            Self::Invalid => (22, "Invalid argument"),
            Self::NoSpace => (28, "No space left on device"),
            Self::NotSupported => (95, "Operation not supported"),
            Self::NoKey => (126, "Required key not available"),
        }
    }

    /// Puts the text of this errno after a sentence, as SPDK does.
    pub(super) fn within(self, sentence: &str) -> RpcError {
        let (number, words) = self.number_and_words();
        RpcError::new(-number, format!("{sentence}: {words}"))
    }
}

impl From<Errno> for RpcError {
    fn from(errno: Errno) -> Self {
        let (number, words) = errno.number_and_words();
        Self::new(-number, words)
    }
}

impl RpcError {
    pub(super) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn invalid() -> Self {
        Self::new(INVALID_PARAMETERS, "Invalid parameters")
    }

    pub(super) fn internal() -> Self {
        Self::new(INTERNAL_ERROR, "Internal error")
    }

    /// Adds a sentence for people, as the error's `data`.
    pub(super) fn because(mut self, sentence: impl ToString) -> Self {
        self.data = Some(sentence.to_string());
        self
    }

    fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = json!(data);
        }
        error
    }
}

/// The parameters of a method, as received.
#[derive(Clone)]
pub(super) struct Params(Option<Value>);

impl Params {
    pub(super) fn parse<T: DeserializeOwned>(self) -> Result<T, String> {
        let object = self.0.unwrap_or_else(|| Value::Object(Map::new()));
        serde_json::from_value(object).map_err(|error| error.to_string())
    }

    pub(super) fn none(self, method: &str) -> Result<(), RpcError> {
        let sentence = format!("{method} requires no parameters");
        match self.0 {
            None => Ok(()),
            Some(Value::Object(object)) if object.is_empty() => Ok(()),
            Some(_) => Err(RpcError::new(INVALID_PARAMETERS, sentence)),
        }
    }
}

/// A request before its validation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RpcRequest {
    #[serde(default)]
    jsonrpc: Option<String>,
    method: String,
    #[serde(default)]
    params: Option<Value>,
    id: Option<Value>,
}

/// Answers a request or a batch. `None` if the client expects no answer. `call` executes a method.
pub(super) fn answer(text: &[u8], call: &mut dyn FnMut(&str, Params) -> Answer) -> Option<Vec<u8>> {
    // The parser refuses duplicate names, because parsers differ in which value they use.
    let answered = match parse_json(text) {
        Ok(Value::Array(batch)) => answer_batch(batch, call),
        Ok(request) => answer_one(request, call),
        Err(error) => Some(refusal(PARSE_ERROR, "Parse error", &error.to_string())),
    };
    answered.map(|answer| (answer + "\n").into_bytes())
}

/// The answer to a request that cannot be parsed.
pub(super) fn refusal(code: i64, message: &str, sentence: &str) -> String {
    let error = RpcError::new(code, message).because(sentence);
    json!({ "jsonrpc": "2.0", "id": null, "error": error.to_json() }).to_string()
}

fn answer_batch(batch: Vec<Value>, call: &mut dyn FnMut(&str, Params) -> Answer) -> Option<String> {
    if batch.is_empty() || batch.len() > MAX_BATCH {
        let sentence = format!("a batch has 1 to {MAX_BATCH} requests");
        return Some(refusal(INVALID_REQUEST, "Invalid RpcRequest", &sentence));
    }
    let mut answers = String::new();
    for request in batch {
        let answer = if answers.len() > MAX_BATCH_BYTES {
            let sentence = "the answers to this batch are too long: send smaller batches";
            Some(refusal(INVALID_REQUEST, "Invalid RpcRequest", sentence))
        } else {
            answer_one(request, call)
        };
        if let Some(answer) = answer {
            answers.push(if answers.is_empty() { '[' } else { ',' });
            answers.push_str(&answer);
        }
    }
    (!answers.is_empty()).then(|| answers + "]")
}

fn answer_one(request: Value, call: &mut dyn FnMut(&str, Params) -> Answer) -> Option<String> {
    let has_id = request.get("id").is_some();
    let invalid = |sentence: &str| Some(refusal(INVALID_REQUEST, "Invalid RpcRequest", sentence));
    let request: RpcRequest = match serde_json::from_value(request) {
        Ok(request) => request,
        Err(error) => return invalid(&error.to_string()),
    };
    if request.jsonrpc.is_some_and(|version| version != "2.0") {
        return invalid("jsonrpc: must be 2.0");
    }
    let id = request.id.unwrap_or(Value::Null);
    if !matches!(id, Value::Null | Value::Number(_) | Value::String(_)) {
        return invalid("id: must be a number or a string");
    }
    if matches!(request.params, Some(Value::Bool(_) | Value::Number(_) | Value::String(_))) {
        return invalid("params: must be an object");
    }
    let params = Params(request.params.filter(|params| !params.is_null()));
    let answer = call(&request.method, params);
    let answer = match answer {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error.to_json() }),
    };
    has_id.then(|| answer.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(text: &str) -> Value {
        let mut call = |method: &str, params: Params| match method {
            "echo" => Ok(params.0.unwrap_or_default()),
            _ => Err(Errno::NoDevice.into()),
        };
        let answer = answer(text.as_bytes(), &mut call);
        answer.map_or(Value::Null, |text| serde_json::from_slice(&text).unwrap())
    }

    #[test]
    fn an_answer_has_the_id_of_its_request() {
        let answer = answered(r#"{"jsonrpc": "2.0", "method": "echo", "id": "a", "params": {}}"#);
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": "a", "result": {} }));
        let answer = answered(r#"{"method": "other", "id": 7}"#);
        let error = json!({ "code": -19, "message": "No such device" });
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": 7, "error": error }));
        assert_eq!(answered(r#"{"method": "echo"}"#), Value::Null);
        let batch = answered(r#"[{"method": "echo", "id": 1}, {"method": "echo"}, 7]"#);
        assert_eq!(batch.as_array().unwrap().len(), 2);
        assert_eq!(batch[1]["error"]["code"], INVALID_REQUEST);
        assert_eq!(answered(r#"[{"method": "echo"}]"#), Value::Null);
    }

    #[test]
    fn an_invalid_request_gets_one_error() {
        for text in [
            "[]",
            "{}",
            r#"{"method": 7, "id": 1}"#,
            r#"{"method": "echo", "id": {}}"#,
            r#"{"method": "echo", "id": 1, "jsonrpc": "1.0"}"#,
            r#"{"method": "echo", "id": 1, "params": "x"}"#,
            r#"{"method": "echo", "id": 1, "more": 1}"#,
        ] {
            assert_eq!(answered(text)["error"]["code"], INVALID_REQUEST, "{text}");
        }
        assert_eq!(answered("{]")["error"]["code"], PARSE_ERROR);
        for twice in [
            r#"{"method": "echo", "method": "other", "id": 1}"#,
            r#"{"method": "echo", "id": 1, "params": {"a": 1, "a": 2}}"#,
        ] {
            assert_eq!(answered(twice)["error"]["code"], PARSE_ERROR, "{twice}");
        }
        let many = format!("[{}]", vec!["{}"; MAX_BATCH + 1].join(","));
        assert_eq!(answered(&many)["error"]["code"], INVALID_REQUEST);
    }
}
