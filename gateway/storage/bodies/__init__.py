"""The store of kept bodies: sealed records in segment files of the folder ``bodies``, and an index in the database.

Other packages use ``body_store``. A record is a frame (``framing``) around the bodies of one request (``packing``),
which are compressed and sealed with the data key of their account (``data_keys``). Frames are appended to segments
(``segments``); a row of the index (``index``) says where.

A frame without a row is not shown, and is cut off when the store is opened next. So what a killed process was writing
is lost, and no half of it is shown.
"""
