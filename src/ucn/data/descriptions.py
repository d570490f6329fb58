"""What data sets are: names, layouts, splits and licences, without the readers, which import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ucn.data.io import IMAGE_SUFFIXES
from ucn.data.listing import VIDEO_SUFFIXES
from ucn.data.sets.own.files import LABEL_FILES, SPLITS


@dataclass(frozen=True)
class DataInfo:
    """The description of a data set.

    Attributes:
        name: its name in commands and recipes.
        title: its full name, with year.
        task: geometric (the same scene), semantic (the same part of another instance), or any.
        ground_truth: where its correspondences come from.
        layout: the files that its reader expects, one entry per line, relative to the folder.
        splits: names of its splits; the first is the default.
        licence: what its owner allows, in plain words; many allow research only.
        source: where to download it; empty for your own data.
        markers: paths or glob patterns, at least one of which exists in such a folder.
        inside: official sub-folders that may hold the markers instead.
    """

    name: str
    title: str
    task: Literal["geometric", "semantic", "any"]
    ground_truth: str
    layout: tuple[str, ...]
    splits: tuple[str, ...]
    licence: str
    source: str
    markers: tuple[str, ...]
    inside: tuple[str, ...] = ()


KITTI_FLOW = DataInfo(
    name="kitti-flow",
    title="KITTI optical flow 2012 and 2015",
    task="geometric",
    ground_truth="sparse flow from a laser scanner, in 2015 with car models; not public for testing",
    layout=(
        "training/image_2/NNNNNN_10.png, NNNNNN_11.png (2015)",
        "training/colored_0/ or image_0/, the same (2012)",
        "training/flow_noc/NNNNNN_10.png and/or training/flow_occ/NNNNNN_10.png",
    ),
    splits=("training", "train", "val"),
    licence="CC BY-NC-SA 3.0: not for commercial use",
    source="https://www.cvlibs.net/datasets/kitti/eval_scene_flow.php?benchmark=flow",
    markers=("training/flow_noc", "training/flow_occ"),
    inside=("data_scene_flow", "data_stereo_flow"),
)

SINTEL = DataInfo(
    name="sintel",
    title="MPI Sintel flow (2012)",
    task="geometric",
    ground_truth="exact dense flow to the next frame, from the film's 3D models; not public for test",
    layout=(
        "training/clean/SCENE/frame_NNNN.png and training/final/SCENE/frame_NNNN.png",
        "training/flow/SCENE/frame_NNNN.flo",
        "training/occlusions/SCENE/frame_NNNN.png and training/invalid/SCENE/frame_NNNN.png",
    ),
    splits=("training", "train", "val"),
    licence="data for research, cite its authors; the film Sintel is CC BY 3.0, © Blender Foundation",
    source="http://sintel.is.tue.mpg.de/",
    markers=("training/flow",),
    inside=("MPI-Sintel-complete", "MPI-Sintel"),
)

MIDDLEBURY_FLOW = DataInfo(
    name="middlebury-flow",
    title="Middlebury optical flow, the 'other' set with public ground truth (2007)",
    task="geometric",
    ground_truth="dense flow; pixels occluded in the next frame are not marked and not dropped",
    layout=(
        "other-data/SCENE/frame10.png and frame11.png (or other-data-gray)",
        "other-gt-flow/SCENE/flow10.flo",
    ),
    splits=("all",),
    licence="no licence is given; free for research by custom, cite its authors",
    source="https://vision.middlebury.edu/flow/data/",
    markers=("other-gt-flow",),
)

MIDDLEBURY_STEREO = DataInfo(
    name="middlebury-stereo",
    title="Middlebury stereo (2001 to 2021)",
    task="geometric",
    ground_truth="dense disparity of rectified pairs: x in the right view is x in the left minus disparity",
    layout=(
        "SCENE/im2.png, im6.png, disp2.png, disp6.png (2001 .ppm and .pgm, 2003)",
        "SCENE/view1.png, view5.png, disp1.png, disp5.png (2005, 2006)",
        "SCENE/im0.png, im1.png, disp0.pfm, disp1.pfm (2014, 2021), or disp0GT.pfm (evaluation, version 3)",
        "the right view's disparity may be missing",
    ),
    splits=("all",),
    licence="no licence is given; free for research by custom, cite its authors",
    source="https://vision.middlebury.edu/stereo/data/",
    markers=("*/disp2.png", "*/disp2.pgm", "*/disp1.png", "*/disp0.pfm", "*/disp0GT.pfm"),
)

HPATCHES = DataInfo(
    name="hpatches",
    title="HPatches full image sequences (2017), for testing only",
    task="geometric",
    ground_truth="homographies from image 1 to images 2 to 6; one point for each pixel that they map inside",
    layout=(
        "v_NAME/ (viewpoint) and i_NAME/ (illumination), each with",
        "1.ppm … 6.ppm (or .png, .jpg) and H_1_2 … H_1_6",
    ),
    splits=("all", "viewpoint", "illumination"),
    licence="MIT for the release; the images come from several earlier sets. Benchmarks are reported on "
    "it: do not train on it",
    source="https://github.com/hpatches/hpatches-dataset",
    markers=("[iv]_*/H_1_2",),
    inside=("hpatches-sequences-release",),
)

KITTI_RAW = DataInfo(
    name="kitti-raw",
    title="KITTI raw data (2013)",
    task="geometric",
    ground_truth="laser scans projected with GPS/IMU poses, without occluded and moving points",
    layout=(
        "DATE/calib_cam_to_cam.txt, calib_velo_to_cam.txt, calib_imu_to_velo.txt",
        "DATE/DATE_drive_NNNN_sync/image_02/data/NNNNNNNNNN.png",
        "… velodyne_points/data/NNNNNNNNNN.bin",
        "… oxts/data/NNNNNNNNNN.txt (where missing, poses are estimated from the scans)",
        "… tracklet_labels.xml (optional)",
    ),
    splits=("train", "test", "all", "paper-train", "paper-test"),
    licence="CC BY-NC-SA 3.0: non-commercial use only",
    source="https://www.cvlibs.net/datasets/kitti/raw_data.php",
    markers=("*/*_drive_*_sync",),
    inside=("raw_data",),
)

KITTI_ODOMETRY = DataInfo(
    name="kitti-odometry",
    title="KITTI visual odometry (2012)",
    task="geometric",
    ground_truth="depth from semi-global stereo matching, and published camera poses",
    layout=(
        "sequences/NN/image_0/NNNNNN.png and image_1 (grey, left and right), or image_2 and image_3 (colour)",
        "sequences/NN/calib.txt: lines P0: … P3:, 3 × 4",
        "poses/NN.txt: 12 numbers a frame, left grey camera to world",
    ),
    splits=("train", "test", "all"),
    licence="CC BY-NC-SA 3.0: non-commercial use only",
    source="https://www.cvlibs.net/datasets/kitti/eval_odometry.php",
    markers=("sequences/*/image_[0-3]",),
    inside=("dataset",),
)

SEVEN_SCENES = DataInfo(
    name="seven-scenes",
    title="RGB-D Dataset 7-Scenes (2013), and recordings in its layout",
    task="geometric",
    ground_truth="depth of a Kinect and camera poses; visibility from the other view's depth",
    layout=(
        "[SCENE/]seq-NN/frame-NNNNNN.color.png (or .jpg), or the frames directly in the folder",
        "… frame-NNNNNN.depth.png: 16 bits, millimetres, 0 and 65535 unknown",
        "… frame-NNNNNN.pose.txt: 4 × 4, camera to world",
        "[SCENE/]TrainSplit.txt, TestSplit.txt: the sequences of each split",
        "camera-intrinsics.txt (optional): 3 × 3, of the depth camera",
    ),
    splits=("train", "test", "all"),
    licence="Microsoft Research licence: non-commercial use only",
    source="https://www.microsoft.com/en-us/research/project/rgb-d-dataset-7-scenes/",
    markers=("frame-*.color.*", "seq-*/frame-*.color.*", "*/seq-*/frame-*.color.*"),
)

STRECHA = DataInfo(
    name="strecha",
    title="Strecha et al., multi-view stereo for outdoor scenes (2008)",
    task="geometric",
    ground_truth="SIFT matches that three measured cameras confirm to half a pixel (sparse)",
    layout=(
        "SCENE/images/NNNN.jpg (or .png)",
        "SCENE/gt_dense_cameras/NNNN.jpg.camera: K, distortion, R, C, width and height",
    ),
    splits=("all",),
    licence="published for research without an explicit licence",
    source="https://documents.epfl.ch/groups/c/cv/cvlab-unit/www/data/multiview/denseMVS.html",
    markers=("gt_dense_cameras", "*/gt_dense_cameras"),
)

CUB = DataInfo(
    name="cub",
    title="Caltech-UCSD Birds-200-2011",
    task="semantic",
    ground_truth="15 annotated parts of birds; any two images of a class are a pair",
    layout=(
        "CUB_200_2011/images.txt: ID CLASS/NAME.jpg",
        "CUB_200_2011/image_class_labels.txt: ID CLASS_ID",
        "CUB_200_2011/train_test_split.txt: ID and 1 (train) or 0 (test)",
        "CUB_200_2011/bounding_boxes.txt: ID X Y WIDTH HEIGHT",
        "CUB_200_2011/parts/parts.txt: PART_ID NAME",
        "CUB_200_2011/parts/part_locs.txt: ID PART_ID X Y VISIBLE",
        "CUB_200_2011/images/CLASS/NAME.jpg",
    ),
    splits=("train", "test", "all"),
    licence="non-commercial research and education only; the images belong to their owners on Flickr",
    source="https://data.caltech.edu/records/65de6-vp158",
    markers=("parts/part_locs.txt",),
    inside=("CUB_200_2011",),
)

FACES = DataInfo(
    name="faces",
    title="Faces with 68 points (300-W scheme): Helen, LFPW, AFW, 300-W",
    task="semantic",
    ground_truth="68 facial landmarks, annotated semi-automatically; any two images are a pair",
    layout=(
        "NAME.jpg or NAME.png, here or up to two folders deeper",
        "NAME.pts beside it: 'version: 1', 'n_points: 68', '{', 68 lines 'x y', '}'; or the 68 lines alone",
    ),
    splits=("all", "train", "test"),
    licence="research only, not commercial (300-W, Helen); the images belong to their owners on Flickr",
    source="https://ibug.doc.ic.ac.uk/resources/facial-point-annotations/",
    markers=("*.pts", "*/*.pts", "*/*/*.pts"),
)

PF_WILLOW = DataInfo(
    name="pf-willow",
    title="PF-WILLOW (Proposal Flow, 2016)",
    task="semantic",
    ground_truth="10 annotated points per image; any two images of a sub-class are a pair",
    layout=(
        "PF-dataset-WILLOW/CLASS(X)/NAME.png",
        "PF-dataset-WILLOW/CLASS(X)/NAME.mat: pts_coord, 2 × 10",
        "test_pairs_pf.csv or test_pairs.csv, for the split pairs: image 0, image 1 and their points",
    ),
    splits=("all", "pairs"),
    licence="none stated; made for research, from WILLOW-ObjectClass; the images belong to their owners",
    source="https://www.di.ens.fr/willow/research/proposalflow/",
    markers=("*(*)/*.mat",),
    inside=("PF-dataset-WILLOW", "PF-dataset"),
)

PF_PASCAL = DataInfo(
    name="pf-pascal",
    title="PF-PASCAL (Proposal Flow, 2017)",
    task="semantic",
    ground_truth="annotated points of PASCAL objects; listed pairs, or any two images of a class",
    layout=(
        "PF-dataset-PASCAL/JPEGImages/NAME.jpg",
        "PF-dataset-PASCAL/Annotations/CLASS/NAME.mat: kps, N × 2 (NaN: not visible), and bbox, 1 × 4",
        "trn_pairs.csv, val_pairs.csv, test_pairs.csv, for these splits: image 0, image 1, class",
    ),
    splits=("all", "train", "val", "test"),
    licence="none stated; the images are PASCAL VOC's, from Flickr, under the terms of their owners",
    source="https://www.di.ens.fr/willow/research/proposalflow/",
    markers=("Annotations/*/*.mat",),
    inside=("PF-dataset-PASCAL",),
)

SPAIR = DataInfo(
    name="spair",
    title="SPair-71k (2019)",
    task="semantic",
    ground_truth="annotated points of PASCAL objects; listed pairs",
    layout=(
        "SPair-71k/JPEGImages/CLASS/NAME.jpg",
        "SPair-71k/Layout/large/trn.txt, val.txt, test.txt: names of pairs, NUMBER-NAME0-NAME1:CLASS",
        "SPair-71k/PairAnnotation/trn/PAIR.json, and val/, test/: src_kps, trg_kps, kps_ids, trg_bndbox, …",
    ),
    splits=("train", "val", "test"),
    licence="none stated; for research, with images of PASCAL VOC and PASCAL3D+ under their owners' terms",
    source="http://cvlab.postech.ac.kr/research/SPair-71k/",
    markers=("PairAnnotation",),
    inside=("SPair-71k",),
)

PASCAL_BERKELEY = DataInfo(
    name="pascal-berkeley",
    title="PASCAL VOC 2011 with Berkeley's keypoints",
    task="semantic",
    ground_truth="annotated, named points of objects; any two objects of a class are a pair",
    layout=(
        "annotations/CLASS/IMAGE_N.xml: Berkeley's voc2011_keypoints_Feb2012.tgz, a file for each object",
        "JPEGImages/IMAGE.jpg, also in VOC2011/ or TrainVal/VOCdevkit/VOC2011/: PASCAL VOC 2011",
    ),
    splits=("train", "test", "all"),
    licence="none stated for the keypoints; the images are from Flickr, under the terms of their owners",
    source="https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/shape/poselets/",
    markers=("annotations/*/*.xml", "Annotations/*/*.xml"),
    inside=("VOC2011", "PascalVOC"),
)

FLOWWEB = DataInfo(
    name="flowweb",
    title="FlowWeb's 12 rigid PASCAL classes (2015)",
    task="semantic",
    ground_truth="annotated parts of PASCAL3D+; any two images of a set are a pair",
    layout=(
        "data/CLASS_set_N/NNN.jpg",
        "data/CLASS_set_N/NNN.mat: keypts, 2 × K, and keypts_status, 1 × K (1: visible)",
    ),
    splits=("all", "train", "test"),
    licence="none stated; for research, with images of PASCAL VOC, from Flickr under their owners' terms",
    source="https://github.com/tinghuiz/flowweb",
    markers=("*_set_*/*.mat",),
    inside=("data", "pascal/data"),
)

SYNTHETIC = DataInfo(
    name="synthetic",
    title="Synthetic pairs from a folder of images",
    task="geometric",
    ground_truth="exact: two views rendered from one image, or of planes in depth from several",
    layout=("any image files, here or in sub-folders",),
    splits=("all",),
    licence="that of the images",
    source="",
    markers=tuple(f"**/*{suffix}" for suffix in IMAGE_SUFFIXES),
)

OWN = DataInfo(
    name="own",
    title="Your own images and points",
    task="any",
    ground_truth="your points",
    layout=(
        "keypoints.csv: image,part,x,y and, optionally, class, object, visible, box, pck_length, split",
        "or keypoints.json: COCO keypoints",
        "or NAME.json of labelme, or NAME.pts, beside each image",
        "or, for listed pairs, pairs.csv: image0,image1 and, optionally, points, pck_length, class, split",
        "points/STEM0__STEM1.csv: x0,y0,x1,y1 and, optionally, part",
        "or pairs.jsonl instead of both: image0, image1, points0, points1, … in an object per line",
        "parts.csv (optional): name,mirror",
    ),
    splits=("all", *SPLITS),
    licence="yours",
    source="",
    markers=("pairs.csv", "pairs.jsonl", *LABEL_FILES),
)

COLMAP = DataInfo(
    name="colmap",
    title="A sparse reconstruction of COLMAP, from your own images",
    task="geometric",
    ground_truth="triangulated: keypoints of one 3D point, as accurate as the reconstruction",
    layout=(
        "images/: the images",
        "sparse/0/ (or the folder itself): cameras, images and points3D, all .bin or all .txt",
    ),
    splits=("all",),
    licence="yours",
    source="",
    markers=("points3D.bin", "points3D.txt"),
    inside=("sparse/0", "sparse"),
)

MULTIVIEW = DataInfo(
    name="multiview",
    title="Scenes with sparse reconstructions of COLMAP, of any kind",
    task="geometric",
    ground_truth="triangulated: keypoints of one 3D point, as accurate as the reconstructions",
    layout=(
        "SCENE/images/: the images",
        "SCENE/sparse/ (or SCENE/sparse/0/): cameras, images and points3D, all .bin or all .txt",
    ),
    splits=("all",),
    licence="of each scene",
    source="",
    markers=(
        "*/sparse/points3D.bin",
        "*/sparse/points3D.txt",
        "*/sparse/0/points3D.bin",
        "*/sparse/0/points3D.txt",
    ),
)

VIDEO = DataInfo(
    name="video",
    title="Your own videos, or their frames",
    task="geometric",
    ground_truth="tracked by Lucas-Kanade with a forward-backward check, not measured; for short gaps",
    layout=(
        "VIDEO.mp4, .avi, .mov, .mkv, .webm, …: one or several; or the path of a video itself",
        "or frames: images, ordered by name",
        "or folders of frames",
    ),
    splits=("all",),
    licence="yours",
    source="",
    markers=tuple(f"*{suffix}" for suffix in VIDEO_SUFFIXES),
)

DESCRIPTIONS = (
    KITTI_FLOW,
    SINTEL,
    MIDDLEBURY_FLOW,
    MIDDLEBURY_STEREO,
    HPATCHES,
    KITTI_RAW,
    KITTI_ODOMETRY,
    SEVEN_SCENES,
    STRECHA,
    CUB,
    FACES,
    PF_WILLOW,
    PF_PASCAL,
    SPAIR,
    PASCAL_BERKELEY,
    FLOWWEB,
    SYNTHETIC,
    OWN,
    COLMAP,
    MULTIVIEW,
    VIDEO,
)
"""All data sets, in the order of `ucn data list`."""
