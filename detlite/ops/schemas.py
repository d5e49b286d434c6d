"""The operators' schemas, for an installation without the compiled kernels.

They repeat csrc/module.cpp, which defines the operators when the kernels are loaded.
"""

SCHEMAS = (
    "nms(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor",
    "batched_nms(Tensor boxes, Tensor scores, Tensor idxs, float iou_threshold) -> Tensor",
    "padded_nms(Tensor boxes, Tensor scores, Tensor groups, Tensor valid, float iou_threshold, "
    "int limit) -> (Tensor index, Tensor kept)",
    "match_boxes(Tensor truth, Tensor valid, Tensor candidates) "
    "-> (Tensor index, Tensor iou, Tensor best)",
    "roi_align_forward(Tensor input, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, int sampling_ratio, bool aligned=False) -> Tensor",
    "roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, int batch_size, int channels, int height, int width, int sampling_ratio, "
    "bool aligned=False) -> Tensor",
    "roi_pool_forward(Tensor input, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, bool need_argmax=True) -> (Tensor output, Tensor argmax)",
    "roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, "
    "int pooled_height, int pooled_width, int batch_size, int channels, int height, int width) "
    "-> Tensor",
    "roi_align_forward.maps(Tensor[] inputs, Tensor rois, Tensor levels, float[] spatial_scales, "
    "int pooled_height, int pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    "roi_align_backward.maps(Tensor grad, Tensor rois, Tensor levels, float[] spatial_scales, "
    "int pooled_height, int pooled_width, int batch_size, int channels, int[] heights, "
    "int[] widths, int sampling_ratio, bool aligned) -> Tensor[]",
    "roi_pool_forward.maps(Tensor[] inputs, Tensor rois, Tensor levels, float[] spatial_scales, "
    "int pooled_height, int pooled_width, bool need_argmax) -> (Tensor output, Tensor argmax)",
    "roi_pool_backward.maps(Tensor grad, Tensor rois, Tensor levels, Tensor argmax, "
    "float[] spatial_scales, int pooled_height, int pooled_width, int batch_size, int channels, "
    "int[] heights, int[] widths) -> Tensor[]",
    "sigmoid_focal_loss_forward(Tensor inputs, Tensor targets, float alpha, float gamma) -> Tensor",
    "sigmoid_focal_loss_backward(Tensor grad, Tensor inputs, Tensor targets, float alpha, "
    "float gamma) -> Tensor",
    "paste_masks_rle(Tensor probs, Tensor boxes, int height, int width, float threshold) "
    "-> (Tensor data, Tensor ends)",
    "mask_intersections(Tensor data, Tensor lengths, Tensor pixels, Tensor index, "
    "Tensor other_data, Tensor other_lengths, Tensor other_pixels, Tensor ranges) "
    "-> (Tensor shared, Tensor areas, Tensor other_areas)",
    "match_detections(Tensor overlaps, Tensor groups, Tensor crowd, Tensor ignored, "
    "Tensor uncounted, Tensor thresholds) -> Tensor",
    "encode_polygons(Tensor corners, Tensor polygons, Tensor masks, Tensor sizes) "
    "-> (Tensor data, Tensor ends)",
    "precision_recall(Tensor outcomes, Tensor scores, Tensor ranks, Tensor ends, "
    "Tensor positives, Tensor limits, Tensor recall_thresholds, int max_dets) "
    "-> (Tensor precision, Tensor recall)",
    "box_overlaps(Tensor boxes, Tensor others, Tensor crowd, Tensor ranges) -> Tensor",
    "crop_masks(Tensor values, Tensor pieces, Tensor instances, Tensor frames, Tensor index, "
    "Tensor boxes, int resolution, bool soft) -> Tensor",
    "heatmap_peaks(Tensor maps, Tensor boxes) -> (Tensor keypoints, Tensor scores)",
)
