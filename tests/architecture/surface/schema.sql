CREATE TABLE accounts (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR(64) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	quota_nanos BIGINT, 
	quota_period VARCHAR(16) NOT NULL, 
	quota_status INTEGER, 
	rpm INTEGER, 
	tpm INTEGER, 
	max_concurrency INTEGER, 
	burst INTEGER, 
	groups JSON NOT NULL, 
	declared BOOLEAN NOT NULL, 
	created_ms BIGINT NOT NULL, 
	zones TEXT, 
	UNIQUE (name)
);
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
CREATE TABLE alerts (
	kind VARCHAR(32) NOT NULL, 
	subject VARCHAR(512) NOT NULL, 
	since_s BIGINT NOT NULL, 
	open BOOLEAN NOT NULL, 
	PRIMARY KEY (kind, subject)
);
CREATE TABLE audit (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at_ms BIGINT NOT NULL, 
	actor_kind VARCHAR(16) NOT NULL, 
	actor VARCHAR(64) NOT NULL, 
	member_id BIGINT, 
	address VARCHAR(64) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	account_id BIGINT, 
	subject TEXT NOT NULL, 
	detail TEXT NOT NULL
);
CREATE TABLE batches (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id VARCHAR(64) NOT NULL, 
	account_id INTEGER NOT NULL, 
	key_id BIGINT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	created_ms BIGINT NOT NULL, 
	expires_ms BIGINT NOT NULL, 
	claimed INTEGER NOT NULL, 
	detail JSON NOT NULL, 
	owner VARCHAR(64) DEFAULT '' NOT NULL, 
	keep_bodies VARCHAR(3) DEFAULT '' NOT NULL, 
	UNIQUE (id), 
	FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE bodies (
	request_id VARCHAR(64) NOT NULL, 
	account_id BIGINT NOT NULL, 
	key_id BIGINT NOT NULL, 
	end_user TEXT NOT NULL, 
	session TEXT NOT NULL, 
	started_ms BIGINT NOT NULL, 
	expires_ms BIGINT NOT NULL, 
	node VARCHAR(64) NOT NULL, 
	segment BIGINT, 
	position BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	loss VARCHAR(16) NOT NULL, 
	PRIMARY KEY (request_id)
);
CREATE TABLE body_drafts (
	name VARCHAR(64) NOT NULL, 
	node VARCHAR(64) NOT NULL, 
	segment BIGINT NOT NULL, 
	process VARCHAR(32) NOT NULL, 
	noted_ms BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE body_key_versions (
	account_id BIGINT NOT NULL, 
	node VARCHAR(64) NOT NULL, 
	version BIGINT NOT NULL, 
	is_pending BOOLEAN NOT NULL, 
	PRIMARY KEY (account_id, node)
);
CREATE TABLE body_leftovers (
	name VARCHAR(64) NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE body_segments (
	node VARCHAR(64) NOT NULL, 
	segment BIGINT NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	bytes BIGINT NOT NULL, 
	moved_ms BIGINT NOT NULL, 
	PRIMARY KEY (node, segment)
);
CREATE TABLE body_store_marks (
	id INTEGER NOT NULL, 
	mark VARCHAR(32) NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE channels (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR(64) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	provider VARCHAR(64) NOT NULL, 
	base_url TEXT NOT NULL, 
	settings JSON NOT NULL, 
	sealed BLOB NOT NULL, 
	created_ms BIGINT NOT NULL, 
	UNIQUE (name)
);
CREATE TABLE deliveries (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id VARCHAR(64) NOT NULL, 
	video_id VARCHAR(64) NOT NULL, 
	account_id BIGINT NOT NULL, 
	key_id BIGINT NOT NULL, 
	event VARCHAR(64) NOT NULL, 
	created_ms BIGINT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	attempts INTEGER NOT NULL, 
	answer INTEGER, 
	ended_ms BIGINT, 
	due_ms BIGINT, 
	owner VARCHAR(64) NOT NULL, 
	lease_until_ms BIGINT NOT NULL, 
	error TEXT, 
	url TEXT NOT NULL, 
	body BLOB NOT NULL, 
	UNIQUE (id)
);
CREATE TABLE entries (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at_ms BIGINT NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	account_id BIGINT NOT NULL, 
	key_id BIGINT, 
	amount_nanos BIGINT NOT NULL, 
	request_id VARCHAR(64), 
	reference VARCHAR(64), 
	note VARCHAR(256)
);
CREATE TABLE failure_hours (
	span INTEGER NOT NULL, 
	hour INTEGER NOT NULL, 
	account_id BIGINT NOT NULL, 
	key_id BIGINT NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	channel VARCHAR(256) NOT NULL, 
	outcome VARCHAR(256) NOT NULL, 
	code VARCHAR(256) NOT NULL, 
	requests BIGINT NOT NULL, 
	PRIMARY KEY (span, hour, account_id, key_id, model, channel, outcome, code)
)
 WITHOUT ROWID

;
CREATE TABLE files (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id VARCHAR(64) NOT NULL, 
	account_id INTEGER NOT NULL, 
	key_id BIGINT NOT NULL, 
	filename TEXT NOT NULL, 
	purpose VARCHAR(32) NOT NULL, 
	bytes BIGINT NOT NULL, 
	created_ms BIGINT NOT NULL, 
	expires_ms BIGINT, 
	UNIQUE (id), 
	FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE fingerprints (
	name VARCHAR(64) NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE identities (
	issuer VARCHAR(512) NOT NULL, 
	subject VARCHAR(255) NOT NULL, 
	member_id INTEGER, 
	PRIMARY KEY (issuer, subject), 
	FOREIGN KEY(member_id) REFERENCES members (id) ON DELETE SET NULL
);
CREATE TABLE kept_responses (
	id VARCHAR(256) NOT NULL, 
	account_id INTEGER NOT NULL, 
	created_ms BIGINT NOT NULL, 
	expires_ms BIGINT NOT NULL, 
	sealed BLOB NOT NULL, 
	before_id VARCHAR(256), 
	inputs BLOB, 
	body_memory BIGINT, 
	inputs_memory BIGINT, 
	stored_bytes BIGINT DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE keys (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	account_id INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	digest BLOB NOT NULL, 
	last4 VARCHAR(4) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	expires_s BIGINT, 
	quota_nanos BIGINT, 
	quota_period VARCHAR(16) NOT NULL, 
	quota_status INTEGER, 
	rpm INTEGER, 
	tpm INTEGER, 
	max_concurrency INTEGER, 
	burst INTEGER, 
	models JSON NOT NULL, 
	"group" VARCHAR(64), 
	allow_ips JSON NOT NULL, 
	declared BOOLEAN NOT NULL, 
	created_ms BIGINT NOT NULL, 
	webhook_url TEXT, 
	former_digest BLOB, 
	former_until_s BIGINT, 
	locked JSON DEFAULT '[]' NOT NULL, 
	end_user TEXT DEFAULT '' NOT NULL, 
	tags TEXT DEFAULT '' NOT NULL, 
	loops JSON, 
	max_session_nanos BIGINT, 
	keep_bodies VARCHAR(32), 
	cache_ttl_s INTEGER, 
	shows_account BOOLEAN DEFAULT 0 NOT NULL, 
	resumable BOOLEAN DEFAULT 0 NOT NULL, 
	UNIQUE (account_id, name), 
	FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE, 
	UNIQUE (digest)
);
CREATE TABLE limit_counters (
	counter TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	start_s BIGINT NOT NULL, 
	spent_nanos BIGINT NOT NULL, 
	PRIMARY KEY (counter, subject, start_s)
)
 WITHOUT ROWID

;
CREATE TABLE limit_fills (
	counter TEXT NOT NULL, 
	keys TEXT NOT NULL, 
	until_s BIGINT, 
	created_s BIGINT NOT NULL, 
	since_s BIGINT NOT NULL, 
	counted_until BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	PRIMARY KEY (counter)
)
 WITHOUT ROWID

;
CREATE TABLE links (
	digest BLOB NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	account_id INTEGER NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	created_ms BIGINT NOT NULL, 
	expires_ms BIGINT NOT NULL, 
	member_id INTEGER, 
	created_by VARCHAR(64) NOT NULL, 
	PRIMARY KEY (digest), 
	FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE, 
	FOREIGN KEY(member_id) REFERENCES members (id) ON DELETE CASCADE
);
CREATE TABLE members (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	account_id INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	role VARCHAR(16) NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	passphrase TEXT NOT NULL, 
	totp BLOB, 
	totp_step BIGINT NOT NULL, 
	recovery JSON NOT NULL, 
	created_ms BIGINT NOT NULL, 
	signed_in_ms BIGINT, 
	may_read_bodies BOOLEAN DEFAULT 0 NOT NULL, 
	FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE, 
	UNIQUE (name)
);
CREATE TABLE orphan_charges (
	node VARCHAR(64) NOT NULL, 
	counter TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	start_s BIGINT NOT NULL, 
	spent_nanos BIGINT NOT NULL, 
	PRIMARY KEY (node, counter, subject, start_s)
)
 WITHOUT ROWID

;
CREATE TABLE passkeys (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	member_id INTEGER NOT NULL, 
	credential_id BLOB NOT NULL, 
	public_key BLOB NOT NULL, 
	sign_count BIGINT NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	transports JSON NOT NULL, 
	created_ms BIGINT NOT NULL, 
	used_ms BIGINT, 
	FOREIGN KEY(member_id) REFERENCES members (id) ON DELETE CASCADE, 
	UNIQUE (credential_id)
);
CREATE TABLE provider_sessions (
	digest BLOB NOT NULL, 
	provider VARCHAR(32) NOT NULL, 
	sealed BLOB NOT NULL, 
	PRIMARY KEY (digest), 
	FOREIGN KEY(digest) REFERENCES sessions (digest) ON DELETE CASCADE
);
CREATE TABLE replays (
	key_id BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	digest VARCHAR(128) NOT NULL, 
	request_id VARCHAR(64) NOT NULL, 
	created_ms BIGINT NOT NULL, 
	owner VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	status INTEGER NOT NULL, 
	media_type TEXT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (key_id, name)
);
CREATE TABLE requests (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id VARCHAR(64) NOT NULL, 
	started_ms BIGINT NOT NULL, 
	settled_ms BIGINT DEFAULT '0' NOT NULL, 
	operation VARCHAR(32) NOT NULL, 
	account_id BIGINT DEFAULT '0' NOT NULL, 
	account VARCHAR(64) NOT NULL, 
	key_id BIGINT NOT NULL, 
	key_name VARCHAR(64) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	channel VARCHAR(64), 
	status INTEGER NOT NULL, 
	outcome VARCHAR(32) NOT NULL, 
	error_code VARCHAR(128), 
	stream BOOLEAN NOT NULL, 
	attempts INTEGER NOT NULL, 
	prompt_tokens INTEGER NOT NULL, 
	completion_tokens INTEGER NOT NULL, 
	cached_tokens INTEGER NOT NULL, 
	usage_source VARCHAR(16) NOT NULL, 
	cost_nanos BIGINT NOT NULL, 
	reserved_nanos BIGINT DEFAULT '0' NOT NULL, 
	overrun_nanos BIGINT DEFAULT '0' NOT NULL, 
	first_byte_ms INTEGER, 
	total_ms INTEGER NOT NULL, 
	client_request_id VARCHAR(64), 
	tried TEXT DEFAULT '' NOT NULL, 
	images INTEGER DEFAULT '0' NOT NULL, 
	duration_ms INTEGER DEFAULT '0' NOT NULL, 
	characters INTEGER DEFAULT '0' NOT NULL, 
	error TEXT DEFAULT '' NOT NULL, 
	unpriced BOOLEAN DEFAULT 0 NOT NULL, 
	batch_id VARCHAR(64), 
	batch_multiplier_ppm INTEGER DEFAULT 1000000 NOT NULL, 
	adapted TEXT DEFAULT '' NOT NULL, 
	served_model TEXT DEFAULT '' NOT NULL, 
	units TEXT DEFAULT '' NOT NULL, 
	route TEXT DEFAULT '' NOT NULL, 
	saved_nanos BIGINT DEFAULT '0' NOT NULL, 
	shadow BOOLEAN DEFAULT 0 NOT NULL, 
	end_user TEXT DEFAULT '' NOT NULL, 
	session TEXT DEFAULT '' NOT NULL, 
	tags TEXT DEFAULT '' NOT NULL, 
	queued_ms INTEGER DEFAULT 0 NOT NULL, 
	limit_charges TEXT DEFAULT '' NOT NULL, 
	replay_of VARCHAR(64) DEFAULT '' NOT NULL, 
	cache VARCHAR(8) DEFAULT '' NOT NULL, 
	agreement_ppm INTEGER, 
	agreed_on VARCHAR(32) DEFAULT '' NOT NULL, 
	UNIQUE (id)
);
CREATE TABLE response_owners (
	id VARCHAR(256) NOT NULL, 
	account_id BIGINT NOT NULL, 
	channel VARCHAR(64) NOT NULL, 
	created_ms BIGINT NOT NULL, 
	tokens BIGINT DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE retired (
	account_id BIGINT NOT NULL, 
	key_id BIGINT NOT NULL, 
	requests BIGINT NOT NULL, 
	cost_nanos BIGINT NOT NULL, 
	until_ms BIGINT NOT NULL, 
	PRIMARY KEY (account_id, key_id)
)
 WITHOUT ROWID

;
CREATE TABLE rollups (
	name VARCHAR(32) NOT NULL, 
	cursor TEXT NOT NULL, 
	first_cursor TEXT NOT NULL, 
	"before" BIGINT NOT NULL, 
	since_ms BIGINT, 
	PRIMARY KEY (name)
);
CREATE TABLE session_states (
	subject TEXT NOT NULL, 
	account_id BIGINT NOT NULL, 
	limit_nanos BIGINT, 
	status INTEGER, 
	changed_ms BIGINT NOT NULL, 
	ended_ms BIGINT, 
	PRIMARY KEY (subject)
)
 WITHOUT ROWID

;
CREATE TABLE sessions (
	digest BLOB NOT NULL, 
	member_id INTEGER NOT NULL, 
	created_ms BIGINT NOT NULL, 
	seen_ms BIGINT NOT NULL, 
	address VARCHAR(64) NOT NULL, 
	agent VARCHAR(256) NOT NULL, 
	PRIMARY KEY (digest), 
	FOREIGN KEY(member_id) REFERENCES members (id) ON DELETE CASCADE
);
CREATE TABLE settings (
	path VARCHAR(128) NOT NULL, 
	value JSON NOT NULL, 
	changed_ms BIGINT NOT NULL, 
	PRIMARY KEY (path)
);
CREATE TABLE sinks (
	name VARCHAR(64) NOT NULL, 
	cursor TEXT NOT NULL, 
	delivered BIGINT NOT NULL, 
	lost BIGINT NOT NULL, 
	lost_ms BIGINT, 
	waiting_ms BIGINT, 
	delivered_ms BIGINT, 
	error TEXT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE speed_hours (
	span INTEGER NOT NULL, 
	hour INTEGER NOT NULL, 
	kind VARCHAR(256) NOT NULL, 
	name VARCHAR(256) NOT NULL, 
	account_id BIGINT NOT NULL, 
	latency TEXT NOT NULL, 
	first_byte TEXT NOT NULL, 
	output_rate TEXT NOT NULL, 
	PRIMARY KEY (span, hour, kind, name, account_id)
)
 WITHOUT ROWID

;
CREATE TABLE split_days (
	day INTEGER NOT NULL, 
	PRIMARY KEY (day)
)
 WITHOUT ROWID

;
CREATE TABLE sqlite_sequence(name,seq);
CREATE TABLE subject_counts (
	kind VARCHAR(16) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	day INTEGER NOT NULL, 
	distinct_values INTEGER NOT NULL, 
	max_values INTEGER NOT NULL, 
	PRIMARY KEY (kind, name, day)
)
 WITHOUT ROWID

;
CREATE TABLE subject_usage (
	kind VARCHAR(16) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	day INTEGER NOT NULL, 
	value TEXT NOT NULL, 
	account_id BIGINT NOT NULL, 
	key_id BIGINT NOT NULL, 
	requests BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	cost_nanos BIGINT NOT NULL, 
	total_ms BIGINT NOT NULL, 
	saved_nanos BIGINT NOT NULL, 
	PRIMARY KEY (kind, name, day, value, account_id, key_id)
)
 WITHOUT ROWID

;
CREATE TABLE upload_parts (
	id VARCHAR(64) NOT NULL, 
	upload_id VARCHAR(64) NOT NULL, 
	bytes BIGINT NOT NULL, 
	created_ms BIGINT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(upload_id) REFERENCES uploads (id) ON DELETE CASCADE
);
CREATE TABLE uploads (
	id VARCHAR(64) NOT NULL, 
	account_id INTEGER NOT NULL, 
	key_id BIGINT NOT NULL, 
	filename TEXT NOT NULL, 
	purpose VARCHAR(32) NOT NULL, 
	mime_type TEXT NOT NULL, 
	bytes BIGINT NOT NULL, 
	created_ms BIGINT NOT NULL, 
	expires_ms BIGINT NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	kept_s INTEGER, 
	file_id VARCHAR(64), 
	PRIMARY KEY (id), 
	FOREIGN KEY(account_id) REFERENCES accounts (id) ON DELETE CASCADE
);
CREATE TABLE usage_days (
	day INTEGER NOT NULL, 
	account_id BIGINT NOT NULL, 
	key_id BIGINT NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	requests BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	cost_nanos BIGINT NOT NULL, 
	PRIMARY KEY (day, account_id, key_id, model)
)
 WITHOUT ROWID

;
CREATE TABLE usage_hours (
	span INTEGER NOT NULL, 
	hour INTEGER NOT NULL, 
	account_id BIGINT NOT NULL, 
	key_id BIGINT NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	channel VARCHAR(64) NOT NULL, 
	status INTEGER NOT NULL, 
	requests BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	cost_nanos BIGINT NOT NULL, 
	total_ms BIGINT NOT NULL, 
	saved_nanos BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (span, hour, account_id, key_id, model, channel, status)
)
 WITHOUT ROWID

;
CREATE TABLE usage_splits (
	day INTEGER NOT NULL, 
	filter_by VARCHAR(16) NOT NULL, 
	value VARCHAR(256) NOT NULL, 
	split_by VARCHAR(16) NOT NULL, 
	label VARCHAR(256) NOT NULL, 
	requests BIGINT NOT NULL, 
	failed BIGINT NOT NULL, 
	prompt_tokens BIGINT NOT NULL, 
	completion_tokens BIGINT NOT NULL, 
	cached_tokens BIGINT NOT NULL, 
	cost_nanos BIGINT NOT NULL, 
	total_ms BIGINT NOT NULL, 
	saved_nanos BIGINT NOT NULL, 
	PRIMARY KEY (day, filter_by, value, split_by, label)
)
 WITHOUT ROWID

;
CREATE TABLE video_prompts (
	video_id VARCHAR(64) NOT NULL, 
	prompt TEXT NOT NULL, 
	PRIMARY KEY (video_id), 
	FOREIGN KEY(video_id) REFERENCES videos (id) ON DELETE CASCADE
);
CREATE TABLE videos (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id VARCHAR(64) NOT NULL, 
	account_id BIGINT NOT NULL, 
	key_id BIGINT NOT NULL, 
	request_id VARCHAR(64) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	created_ms BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	owner VARCHAR(64) NOT NULL, 
	lease_until_ms BIGINT NOT NULL, 
	due_ms BIGINT, 
	channel VARCHAR(64) NOT NULL, 
	progress INTEGER NOT NULL, 
	polls INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	updated_ms BIGINT NOT NULL, 
	deadline_ms BIGINT NOT NULL, 
	completed_ms BIGINT, 
	expires_ms BIGINT, 
	over_ms BIGINT, 
	held_nanos BIGINT NOT NULL, 
	cost_nanos BIGINT NOT NULL, 
	provider VARCHAR(64) NOT NULL, 
	wire VARCHAR(64) NOT NULL, 
	upstream_model TEXT NOT NULL, 
	upstream_id TEXT, 
	key_print VARCHAR(64) NOT NULL, 
	media_id VARCHAR(64), 
	media_bytes BIGINT NOT NULL, 
	media_type VARCHAR(64) NOT NULL, 
	remixed_from VARCHAR(64), 
	size TEXT NOT NULL, 
	seconds TEXT NOT NULL, 
	error_code TEXT, 
	error_message TEXT, 
	webhook_url TEXT, 
	receipt TEXT NOT NULL, 
	clue TEXT, 
	status_words VARCHAR(16) DEFAULT 'spec' NOT NULL, 
	UNIQUE (id), 
	UNIQUE (request_id)
);
CREATE INDEX audit_by_account ON audit (account_id, sequence);
CREATE INDEX batches_by_account ON batches (account_id, sequence);
CREATE INDEX batches_by_status ON batches (status);
CREATE INDEX bodies_by_account ON bodies (account_id, started_ms);
CREATE INDEX bodies_by_expiry ON bodies (node, expires_ms);
CREATE INDEX bodies_by_segment ON bodies (node, segment);
CREATE INDEX deliveries_by_account ON deliveries (account_id, sequence);
CREATE INDEX deliveries_by_end ON deliveries (ended_ms);
CREATE INDEX deliveries_by_video ON deliveries (video_id, sequence);
CREATE INDEX deliveries_due ON deliveries (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX entries_by_account ON entries (account_id, at_ms);
CREATE INDEX entries_of_credit ON entries (account_id, key_id, sequence) WHERE kind != 'charge';
CREATE INDEX files_by_account ON files (account_id, sequence);
CREATE INDEX files_by_expiry ON files (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE INDEX identities_by_member ON identities (member_id);
CREATE INDEX kept_responses_by_account ON kept_responses (account_id, stored_bytes);
CREATE INDEX kept_responses_by_before ON kept_responses (before_id);
CREATE INDEX kept_responses_by_expiry ON kept_responses (expires_ms);
CREATE INDEX passkeys_by_member ON passkeys (member_id);
CREATE INDEX replays_by_age ON replays (created_ms);
CREATE INDEX replays_running ON replays (owner) WHERE state = 'running';
CREATE INDEX requests_by_account ON requests (account_id, sequence);
CREATE INDEX requests_by_account_session ON requests (session, account_id, sequence) WHERE session != '';
CREATE INDEX requests_by_batch ON requests (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX requests_by_end_user ON requests (end_user, sequence) WHERE end_user != '';
CREATE INDEX requests_by_key ON requests (key_id, sequence);
CREATE INDEX requests_by_model ON requests (model, sequence);
CREATE INDEX requests_by_session ON requests (session, sequence) WHERE session != '';
CREATE INDEX requests_wrong ON requests (sequence) WHERE outcome NOT IN ('completed', 'client_closed', 'cancelled');
CREATE INDEX response_owners_by_age ON response_owners (created_ms);
CREATE INDEX session_states_by_change ON session_states (changed_ms);
CREATE INDEX sessions_by_member ON sessions (member_id);
CREATE INDEX upload_parts_by_upload ON upload_parts (upload_id);
CREATE INDEX uploads_by_account ON uploads (account_id);
CREATE INDEX uploads_by_expiry ON uploads (expires_ms);
CREATE INDEX videos_by_account ON videos (account_id, sequence);
CREATE INDEX videos_due ON videos (due_ms) WHERE due_ms IS NOT NULL;
CREATE INDEX videos_failed ON videos (sequence) WHERE state = 'failed';
CREATE INDEX videos_live ON videos (sequence) WHERE state NOT IN ('completed', 'failed');
CREATE INDEX videos_over ON videos (over_ms) WHERE over_ms IS NOT NULL;
CREATE INDEX videos_owned ON videos (owner) WHERE owner != '';
