"""Durable video jobs: a client creates a job, a worker polls its provider, a webhook reports its end.

Creation:  server.handlers.video_create parses the request -> submit.VideoSubmitter: loads the reference image
           (reference_image), stores the job with its reservation (reservations), and asks a provider
           (proxy.failover, provider_api, formats.videos.backends) -> stores the started job -> events.JobStarted
Polling:   poll_worker.VideoPoller claims the jobs that are due -> tracker.VideoTracker polls the provider of one
           (provider_api), or downloads its file (content) -> the poller stores the jobs that go on
End:       jobs.VideoJobs.finish -> reservations: in one commit the end, the charge and the webhook delivery
           -> events.JobEnded -> webhook_worker.WebhookWorker -> webhook_sender
Changes:   events.JobChanged -> notifier.JobNotifier wakes server.handlers.video_events, which a client follows

Not started: if no provider has started a video, ``submit.VideoSubmitter._drop`` deletes the job and releases its
           reservation; only the request's record remains, and nothing is charged

The price is fixed at submission, when a provider has started the job. ``submit._set_charge`` computes the cost from
the price of the attempt, the length and the size, and the row keeps it (``cost_nanos``). The end charges that cost,
whatever has become of the price. A job that fails or is cancelled costs nothing.

A repeated ``Idempotency-Key`` gets the stored answer: ``server.handlers.video_create`` stores it under the key once the
job has started, also if the client has disconnected. If the outcome is unknown, the key stays blocked, because another
request with it might make a second video.

Money is reserved in memory by ``billing.quota.QuotaService.admit``, which the submitter calls itself: the routes of
videos have no ``quota`` middleware. From then on the job's row has the reservation, not the journal
(``journaled=False``). If the process is killed, the next start of a single gateway calls
``jobs.VideoJobs.restore_reservations``, which ends the claims of the old process and reserves the money of open jobs
again. Then the poller, in a cluster that of any node, claims the job. ``tracker.VideoTracker.check`` decides by its
state:

    created             no provider was asked: the job fails as ``interrupted``, nothing is charged
    submitting          a provider may have started a video: the job fails as ``submit_unknown``, nothing is charged
    queued, processing  polled again
    fetching            downloaded again
    completed, failed   ended and charged in one commit; a delivery that was not recorded is sent again with its id

``domain.video`` has the states of a job and the steps between them, ``storage.videos`` the store. A job belongs to one
process (``owner``) by a claim, which the poller renews. ``job_tasks`` has the work outside the poller.
``services.videos`` puts the parts together. In a cluster its nodes relay the events
(``cluster.membership.job_events``).
"""
