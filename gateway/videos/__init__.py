"""Durable video jobs: a client creates a job, a worker polls its provider, a webhook reports its end.

Creation:  server.handlers.video_create parses the request -> submit.VideoSubmitter: loads the reference image
           (reference_image), stores the job with its reservation (reservations), and asks a provider
           (proxy.failover, provider_api, formats.videos.backends) -> stores the started job -> events.JobStarted
Polling:   poll_worker.VideoPoller claims the jobs that are due -> tracker.VideoTracker polls the provider of one
           (provider_api), or downloads its file (content) -> the poller stores the jobs that go on
End:       jobs.VideoJobs.finish -> reservations: in one commit the end, the charge and the webhook delivery
           -> events.JobEnded -> webhook_worker.WebhookWorker -> webhook_sender
Changes:   events.JobChanged -> notifier.JobNotifier wakes server.handlers.video_events, which a client follows

Money is reserved in memory by ``billing.quota.QuotaService.admit``, which the submitter calls itself: the routes of
videos have no ``quota`` middleware. From then on the job's row has the reservation, not the journal
(``journaled=False``). If the process is killed, the next start, or another node, finds the job in one of these states:

    created             no provider was asked: the job fails as ``interrupted``, nothing is charged
    submitting          a provider may have started a video: the job fails as ``submit_unknown``, nothing is charged
    queued, processing  polled again
    fetching            downloaded again
    completed, failed   ended and charged in one commit; a delivery that was not recorded is sent again with its id

``domain.video`` has the states of a job and the steps between them, ``storage.videos`` the store. A job belongs to one
process by a claim, which the poller renews; ``job_tasks`` has the work outside the poller. ``services.videos`` puts the
parts together; in a cluster its nodes relay the events (``cluster.membership.job_events``).
"""
